"""Which groups workers were lost under, and what becomes of one that may be the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from headrace.experience.sample import GroupKey

_LOSSES_UNTIL_ALONE = 2
_MOST_LOSSES = 3


class Blame:
    """Of one rollout worker: how often in a row it was lost, without a group that it finished between. However often
    one prompt alone was aboard, that counts once: the row is the reason, and is left out in its time."""

    def __init__(self) -> None:
        self.failures = 0
        self._under: tuple[int, int] | None = None

    def lost(self, aboard: Collection[GroupKey]) -> int:
        """It was lost with these aboard. How often in a row now."""
        prompts = {(key.epoch, key.position) for key in aboard}
        under = prompts.pop() if len(prompts) == 1 else None
        if under is None or under != self._under:
            self.failures += 1
        self._under = under
        return self.failures

    def finished(self) -> None:
        """It finished a group."""
        self.failures, self._under = 0, None


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
