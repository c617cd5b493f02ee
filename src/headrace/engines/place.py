"""Where something is generated, and what it weighs there: tokens that its engine still has to sample, at most."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.engines.member import Member
from headrace.weights.version import Version


@dataclass(slots=True, eq=False)
class Place:
    """Where a group, an episode or an evaluation is generated. Chosen when it is admitted; it travels with it."""

    version: Version
    """That it began on: no engine serves it with an older one of the line, and those of `only` with no newer one."""
    home: int | None = None
    """Index of its engine; None until its first request, where each episode has an engine of its own. Another one once
    that engine is gone."""
    only: tuple[int, ...] = ()
    """No other engine may serve it, if any are named."""
    left: int = 0
    """Of the tokens that it is reckoned with, those still to come: its share of its engine's load."""

    @property
    def exactly(self) -> Version | None:
        """The version that alone may serve it: that which is held for it, where engines are named."""
        return self.version if self.only else None

    def of_episode(self) -> Place:
        """Of one episode of the group: its own, where each goes to an engine of its own."""
        return self if self.home is not None or self.only else Place(self.version)


class RequestLoad:
    """What one request weighs at `member`: its own tokens, or, at the engine where the place is reckoned with already,
    some of the place's."""

    def __init__(self, member: Member, place: Place | None, tokens: int) -> None:
        self._member = member
        self._place = None if place is None or place.home != member.index or place.left <= 0 else place
        self._owed = tokens if self._place is None else 0
        member.outstanding += self._owed

    def came(self, count: int) -> None:
        """So many of its tokens have come."""
        if self._place is None:
            paid = min(count, self._owed)
            self._owed -= paid
        elif self._place.home != self._member.index:
            paid = 0  # the engine is gone, and the place is reckoned with elsewhere
        else:
            paid = min(count, self._place.left)
            self._place.left -= paid
        self._member.outstanding -= paid

    def end(self) -> None:
        """No more come."""
        self._member.outstanding -= self._owed
        self._owed = 0
