"""The share of a group's episodes that passed, for a curriculum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headrace.experience.header import GroupHeader


class Learner(Protocol):
    def learn(self, pass_rates: Iterable[tuple[int, float]]) -> None:
        """(row, pass rate), in the order in which they count."""
        ...


class PassRates:
    def __init__(self, order: Learner, *, passes_above: float) -> None:
        self._order = order
        self._passes_above = passes_above

    def of(self, group: GroupHeader) -> float | None:
        """Of its episodes, by the reward of the last sample of each; None if none has a reward."""
        last = {sample.episode: sample.reward for sample in group.trainable if sample.reward is not None}
        return sum(reward > self._passes_above for reward in last.values()) / len(last) if last else None

    def learn(self, pass_rates: Iterable[tuple[int, float]]) -> None:
        self._order.learn(pass_rates)
