"""Answers whose time has a heavy tail: before each one a tool takes its time, or their lengths are drawn."""

from __future__ import annotations

import asyncio
import math
import random

from headrace import Policy, Prompt, Trajectory

LONGEST = 512
"""Tokens of a `DrawnLength`."""


class SlowTool:
    MEDIAN_S, SIGMA = 0.05, 1.0

    def __init__(self) -> None:
        self._random = random.Random(0)

    async def run(self, prompt: Prompt, policy: Policy) -> Trajectory:
        await asyncio.sleep(self._random.lognormvariate(math.log(self.MEDIAN_S), self.SIGMA))
        trajectory = Trajectory(policy.encode(prompt.content))
        trajectory.add_completion(await policy.generate(trajectory.tokens))
        return trajectory


class SlowerTool(SlowTool):
    """Beside a model that itself takes a second or more for an answer."""

    MEDIAN_S = 0.5


class DrawnLength:
    """Lengths in tokens that do not depend on what the policy learns, if it never ends an answer itself."""

    MEDIAN, SIGMA = 29, 1.0

    def __init__(self) -> None:
        self._random = random.Random(0)

    async def run(self, prompt: Prompt, policy: Policy) -> Trajectory:
        length = math.ceil(self._random.lognormvariate(math.log(self.MEDIAN), self.SIGMA))
        trajectory = Trajectory(policy.encode(prompt.content))
        trajectory.add_completion(await policy.generate(trajectory.tokens, max_new_tokens=min(length, LONGEST)))
        return trajectory
