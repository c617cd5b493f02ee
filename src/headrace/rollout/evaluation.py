"""Answers held-out prompts with one pinned version, and scores the answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engines.protocol import Engine
from headrace.experience.dataset import Prompt
from headrace.experience.sample import Group, GroupKey
from headrace.rollout.episodes import EpisodeRunner
from headrace.rollout.failures import failure_kind
from headrace.rollout.rewards.model import ModelReward
from headrace.runtime.protocol import Clock
from headrace.weights.version import Version

_SAMPLES_SHOWN = 3
_EPOCH = 2**31 - 1
"""Evaluation noise must not be training noise: no training epoch has this number."""


class Evaluation:
    def __init__(
        self,
        engine: Engine,
        runner: EpisodeRunner,
        prompts: Sequence[Prompt],
        decode: Callable[[NDArray[np.int32]], str],
        clock: Clock,
        *,
        concurrency: int,
        timeout_s: float,
        model_reward: ModelReward | None = None,
        ended: Callable[[Group], None] = lambda group: None,
    ) -> None:
        """`runner` draws one episode a prompt; `concurrency` prompts are answered at a time. `ended` is called with
        each answer, and may end the evaluation with an error."""
        self._ended = ended
        self._model_reward = model_reward
        self._engine = engine
        self._runner = runner
        self._prompts = prompts
        self._decode = decode
        self._clock = clock
        self._concurrency = concurrency
        self._timeout_s = timeout_s

    async def run(self) -> tuple[Version, dict[str, Any]]:
        """All prompts once, on the engine's present version.

        The result has `reward_mean` over scored samples (None if none was), `response_tokens_mean`, `prompts`,
        `failed`, with `failed_by_kind` and `last_failure` (None if none failed with a reason), and the first few
        `samples`. Raises WaitTimeout; the engine is freed in any case.
        """
        pinned = self._engine.pin()
        try:
            groups = await self._clock.wait_for(
                self._answers(pinned.version), self._timeout_s, f"the evaluation of {pinned.version}"
            )
            return pinned.version, self._result(groups)
        finally:
            pinned.release()

    async def _answers(self, version: Version) -> list[Group]:
        places = asyncio.Semaphore(self._concurrency)

        async def answer(position: int, prompt: Prompt) -> Group:
            async with places:
                group = await self._runner.run_group(GroupKey(_EPOCH, position, 0), prompt, version, version.number)
                self._ended(group)
                return group

        try:
            async with asyncio.TaskGroup() as tasks:
                answers = [tasks.create_task(answer(*place)) for place in enumerate(self._prompts)]
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        groups = [task.result() for task in answers]
        return groups if self._model_reward is None else await self._model_reward.scored(groups)

    def _result(self, groups: Sequence[Group]) -> dict[str, Any]:
        samples = [group.samples[0] for group in groups]
        rewards = [sample.reward for sample in samples if sample.reward is not None]
        failures = [sample.failure for sample in samples if sample.reward is None and sample.failure is not None]
        shown = [
            {
                "prompt": prompt.content,
                "response": self._decode(sample.tokens[sample.loss_mask]),
                "reward": sample.reward,
            }
            for prompt, sample in list(zip(self._prompts, samples, strict=True))[:_SAMPLES_SHOWN]
        ]
        return {
            "reward_mean": sum(rewards) / len(rewards) if rewards else None,
            "response_tokens_mean": sum(sample.response_tokens for sample in samples) / len(samples),
            "prompts": len(samples),
            "failed": len(samples) - len(rewards),
            "failed_by_kind": dict(Counter(failure_kind(failure) for failure in failures).most_common()),
            "last_failure": failures[-1] if failures else None,
            "samples": shown,
        }
