"""The policy and an environment take turns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import SampleStatus
from headrace.experience.text.conversation import opening
from headrace.rollout.environment import Environment, StepResult
from headrace.rollout.policy import Policy
from headrace.rollout.trajectory import Trajectory


class MultiTurn:
    """Until the environment is done, or `max_turns` or the context is used up."""

    def __init__(
        self, environment: Callable[[], Environment], max_turns: int, *, keep_special_tokens: bool = False
    ) -> None:
        """`keep_special_tokens`: in what the environment, and rewards by `messages`, read of the policy."""
        self._environment = environment
        self._max_turns = max_turns
        self._keep_special_tokens = keep_special_tokens

    async def run(self, prompt: Prompt, policy: Policy) -> Trajectory:
        environment = self._environment()
        content = await _result(environment.reset(prompt.row))
        if content is None:
            content = prompt.content
        trajectory = Trajectory(await policy.encoded(content))
        trajectory.messages = messages = opening(content)
        for turn in range(1, self._max_turns + 1):
            completion = await policy.generate(trajectory.tokens)
            if not len(completion.tokens):  # the context is full
                trajectory.status = SampleStatus.TRUNCATED
                break
            trajectory.add_completion(completion)
            trajectory.metadata["turns"] = turn
            action = await policy.decoded(completion.tokens, keep_special_tokens=self._keep_special_tokens)
            messages.append({"role": "assistant", "content": action})
            step = await _result(environment.step(action))
            if not isinstance(step, StepResult):
                raise TypeError(f"the environment's step returned {type(step).__name__}; return a StepResult")
            if step.reward is not None:
                trajectory.reward = (trajectory.reward or 0.0) + step.reward
            if step.done:
                trajectory.status = SampleStatus.COMPLETED
                break
            trajectory.status = SampleStatus.TRUNCATED
            # After the last turn too: this is the state that the limit cuts off, whose value a critic knows.
            last = int(completion.tokens[-1])
            chat = not isinstance(content, str)
            observed = await policy.encoded_observation(step.observation, chat=chat, last_token=last)
            trajectory.add_observation(observed)
            messages.append({"role": policy.observation_role, "content": step.observation})
        return trajectory


async def _result(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
