"""Rewards that follow from the tokens of a response, after a modelled while."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.models.simulated import identities, stream_of, uniform
from headrace.observe.durations import Durations
from headrace.rewards.outcome import RewardOutcome
from headrace.rewards.reward_pool import Messages, PromptContent
from headrace.runtime.protocol import Clock

_VALUE, _TIME = 1, 2


@dataclass(frozen=True, slots=True)
class RewardCosts:
    mean_s: float = 0.1
    """Of a score; they are exponentially distributed."""
    levels: int = 5
    """Different rewards, from 0 to 1."""


class SimulatedRewards:
    """Implements `headrace.rewards.reward_pool.Rewards`, in any number at once."""

    def __init__(self, clock: Clock, costs: RewardCosts = RewardCosts()) -> None:
        self._clock = clock
        self._costs = costs
        self.times = Durations()

    async def score(
        self,
        response: str,
        row: dict[str, Any],
        prompt: PromptContent,
        messages: Messages | None = None,
        ids: NDArray[np.int32] | None = None,
        earlier: Sequence[Messages] = (),
    ) -> RewardOutcome:
        tokens = np.frombuffer(response.encode("utf-32-le"), np.uint32) if ids is None else ids
        places = np.arange(len(tokens))
        key = int(identities(tokens, places, places[:1])[0]) if len(tokens) else 0
        seconds = -self._costs.mean_s * math.log(1 - float(uniform(stream_of(key, _TIME), places[:1] * 0)[0]))
        await self._clock.sleep(seconds)
        self.times.add(seconds)
        level = int(uniform(stream_of(key, _VALUE), np.zeros(1, np.int64))[0] * self._costs.levels)
        return RewardOutcome(level / max(self._costs.levels - 1, 1))

    async def score_group(
        self,
        responses: Sequence[str],
        row: dict[str, Any],
        prompt: PromptContent,
        rewards: Sequence[float | None],
        messages: Sequence[Messages | None] | None = None,
    ) -> list[RewardOutcome]:
        await self._clock.sleep(self._costs.mean_s)
        return [RewardOutcome(reward or 0.0) for reward in rewards]
