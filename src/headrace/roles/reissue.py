"""Which groups workers were lost under, and what becomes of one that may be the reason."""

from __future__ import annotations

from collections import Counter

from headrace.experience.sample import GroupKey

_LOSSES_UNTIL_ALONE = 2
_MOST_LOSSES = 3


class Losses:
    """Of rollout workers, by the attempts that they had aboard. Whoever was aboard twice is played alone: so the third
    loss is its own."""

    def __init__(self) -> None:
        self._losses: Counter[GroupKey] = Counter()

    def lost(self, key: GroupKey) -> bool:
        """A worker was lost under the attempt. Whether it is not to be issued again: it was aboard a third time."""
        self._losses[key] += 1
        return self._losses[key] >= _MOST_LOSSES

    def is_alone(self, key: GroupKey) -> bool:
        """Whether nothing else may be aboard the worker that plays it."""
        return self._losses[key] >= _LOSSES_UNTIL_ALONE

    def ended(self, key: GroupKey) -> None:
        """The attempt is finished, or handed back."""
        self._losses.pop(key, None)
