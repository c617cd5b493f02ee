"""Which groups workers were lost under, and what becomes of one that may be the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from headrace.experience.sample import GroupKey

_LOSSES_UNTIL_ALONE = 2
_MOST_LOSSES = 3

_Row = tuple[int, int]
"""Epoch and position of a prompt, whichever attempt."""


class Blame:
    """Of one rollout worker: how often in a row it was lost, without a group that it finished between. However often
    a prompt alone was aboard, that counts once: the row is the reason, and is left out in its time."""

    def __init__(self) -> None:
        self.failures = 0
        self._alone: set[_Row] = set()
        """Prompts that were aboard alone."""

    def lost(self, aboard: Collection[GroupKey]) -> int:
        """It was lost with these aboard. How often in a row now."""
        rows = rows_of(aboard)
        if len(rows) != 1 or not rows <= self._alone:
            self.failures += 1
        if len(rows) == 1:
            self._alone |= rows
        return self.failures

    def finished(self) -> None:
        """It finished a group."""
        self.failures = 0
        self._alone.clear()


class Losses:
    """Of rollout workers, by the attempts that they had aboard. Whoever was aboard twice is played alone: so the third
    loss is its own; and so are those of a later attempt, which is played alone from the first."""

    def __init__(self) -> None:
        self._losses: Counter[GroupKey] = Counter()
        self._known: set[_Row] = set()
        """Prompts of which an attempt was aboard three times, or that filters end workers under."""

    def lost(self, key: GroupKey) -> bool:
        """A worker was lost under the attempt. Whether it is not to be issued again: it was aboard a third time."""
        self._losses[key] += 1
        if self._losses[key] < _MOST_LOSSES:
            return False
        self.blame(key)
        return True

    def is_alone(self, key: GroupKey) -> bool:
        """Whether nothing else may be aboard the worker that plays it."""
        return self._losses[key] >= _LOSSES_UNTIL_ALONE or _row(key) in self._known

    def blame(self, key: GroupKey) -> None:
        """Its prompt is the reason for what workers were lost with."""
        self._known.add(_row(key))

    def are_reason(self, rows: frozenset[_Row]) -> bool:
        """Whether one of these prompts is known to be what workers are lost with."""
        return not rows.isdisjoint(self._known)

    def ended(self, key: GroupKey) -> None:
        """The attempt is finished, or handed back."""
        self._losses.pop(key, None)


class LostTime:
    """Seconds that went into what was lost with a worker, and into its return. Of several workers at once they count
    once."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._seconds = 0.0
        self._until = float("-inf")

    def lost(self, since: float) -> None:
        """Of one worker, from then to now."""
        now = self._now()
        self._seconds += max(now - max(since, self._until), 0.0)
        self._until = now

    def seconds(self) -> float:
        """Up to the last loss or return."""
        return self._seconds


def rows_of(keys: Collection[GroupKey]) -> frozenset[_Row]:
    return frozenset(map(_row, keys))


def _row(key: GroupKey) -> _Row:
    return key.epoch, key.position
