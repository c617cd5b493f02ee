"""One prompt, one response."""

from __future__ import annotations

from headrace.experience.prompts.dataset import Prompt
from headrace.rollout.policy import Policy
from headrace.rollout.trajectory import Trajectory


class SingleTurn:
    """The shortest workflow, and the model for writing another."""

    async def run(self, prompt: Prompt, policy: Policy) -> Trajectory:
        trajectory = Trajectory(await policy.encoded(prompt.content))
        trajectory.add_completion(await policy.generate(trajectory.tokens))
        return trajectory
