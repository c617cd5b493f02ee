"""An agent whose tools take their time, from a tenth of a second to three, with a heavy tail."""

from __future__ import annotations

import asyncio
import math
import random

from headrace import Policy, Prompt, Trajectory

TURNS, TOKENS = 4, 12
MEDIAN_S, SIGMA, LEAST_S, MOST_S = 0.25, 1.0, 0.1, 3.0


def tool_s(rng: random.Random) -> float:
    """Of one call: log-normal, cut to what is stated."""
    return min(max(rng.lognormvariate(math.log(MEDIAN_S), SIGMA), LEAST_S), MOST_S)


class SlowTools:
    """Each turn some tokens of the policy, then a tool, whose answer is one token."""

    def __init__(self) -> None:
        self._random = random.Random(0)

    async def run(self, prompt: Prompt, policy: Policy) -> Trajectory:
        trajectory = Trajectory(policy.encode(prompt.content))
        for turn in range(TURNS):
            trajectory.add_completion(await policy.generate(trajectory.tokens, max_new_tokens=TOKENS))
            if turn < TURNS - 1:
                await asyncio.sleep(tool_s(self._random))
                trajectory.add_observation([3])
        return trajectory
