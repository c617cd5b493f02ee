"""A workflow that computes in Python between its turns, as environments and agents do."""

from __future__ import annotations

import time

from headrace import Policy, Prompt, Trajectory

TURNS, TOKENS, CPU_S = 4, 16, 0.002


class BusyTurns:
    """Turns of so many tokens, and before each so many seconds of pure Python, which hold the interpreter."""

    async def run(self, prompt: Prompt, policy: Policy) -> Trajectory:
        trajectory = Trajectory(policy.encode(prompt.content))
        for _ in range(TURNS):
            end = time.thread_time() + CPU_S
            while time.thread_time() < end:
                sum(range(100))
            trajectory.add_completion(await policy.generate(trajectory.tokens, max_new_tokens=TOKENS))
        return trajectory
