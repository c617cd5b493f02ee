"""Attempts that are given out: which are played, as which issue, and which are to be issued again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from headrace.experience.sample import GroupKey


class IssuedGroups:
    """What is to be issued again comes before any new prompt, in the order in which it was known."""

    def __init__(self) -> None:
        self._playing: dict[GroupKey, int] = {}
        """Each with its issue number: what comes of an earlier issue is nothing to us."""
        self._again: deque[GroupKey] = deque()
        self._begun: dict[GroupKey, int] = {}
        """Of those that are issued again after a restart, and of which tokens were kept: the version number that they
        had started on."""
        self._left: dict[GroupKey, None] = {}
        """Played still, though they have no place any more since the run went back: to be ended, and issued again."""

    def issue_of(self, key: GroupKey) -> int | None:
        """The issue as which it is played; None if it is not to be played any more."""
        return self._playing.get(key)

    def play(self, key: GroupKey, issue: int) -> None:
        """It is played as this issue from now on."""
        self._playing[key] = issue

    def end(self, key: GroupKey) -> None:
        """What comes of it is nothing to us any more."""
        self._playing.pop(key, None)

    def again(self, keys: Iterable[GroupKey]) -> None:
        """These are to be issued again."""
        self._again.extend(keys)

    def again_from_tokens(self, begun: Mapping[GroupKey, int]) -> None:
        """These too, from tokens that were kept: each with the version number that it had started on. First those of
        the oldest."""
        self._begun.update(begun)
        self.again(sorted(begun, key=lambda key: (begun[key], key)))

    @property
    def waits(self) -> bool:
        """Whether one is to be issued again."""
        return bool(self._again)

    @property
    def begun_on(self) -> int | None:
        """The version number that the next one had started on, if it goes on from tokens that were kept."""
        return self._begun.get(self._again[0]) if self._again else None

    def take_next(self) -> GroupKey:
        """The next one, which is issued again now."""
        key = self._again.popleft()
        self._begun.pop(key, None)
        return key

    @property
    def left(self) -> list[GroupKey]:
        """Those that are played still, and must end: the run went back, and has no place for them any more."""
        return list(self._left)

    def leave(self, keys: Iterable[GroupKey]) -> None:
        """These are `left` from now on."""
        for key in keys:
            self.end(key)
            self._left[key] = None

    def has_ended(self, key: GroupKey) -> bool:
        """Nobody plays it any more. Whether it was `left`, and so is to be issued again."""
        if key not in self._left:
            return False
        del self._left[key]
        self._again.append(key)
        return True
