"""What an evaluation tells of a set follows from the samples that were scored."""

from __future__ import annotations

from typing import Any

import numpy as np
import observe_samples

from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.rollout.episode_scoring import empty_sample
from headrace.rollout.evaluation import Evaluation
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.weights.version import INITIAL


def answered(key: GroupKey, episode: int, tokens: int, reward: float | None) -> Sample:
    """A prompt token, then so many that the policy chose."""
    arrays = (np.zeros(tokens + 1, np.int32), np.arange(tokens + 1) > 0)
    others = (np.zeros(tokens + 1, np.float32), *2 * (np.zeros(tokens + 1, np.int32),))
    failure = None if reward is not None else "reward_timeout: it took 9 s"
    status = SampleStatus.COMPLETED if failure is None else SampleStatus.FAILED
    return Sample(key, episode, 0, *arrays, *others, status=status, reward=reward, failure=failure)


class Scripted:
    """Of two prompts, two samples each: one of each failed."""

    async def run_group(self, key: GroupKey, prompt: Prompt, *rest: Any, **named: Any) -> Group:
        failed = (empty_sample(key, 1, SampleStatus.FAILED, "engine: x"), answered(key, 1, 2, None))[key.position]
        return Group(key, prompt.prompt_id, 0, 0, (answered(key, 0, 10 + 4 * key.position, 1.0), failed))


def evaluated(runner: Any) -> dict[str, Any]:
    data = {"train": "t.jsonl", "eval": "e.jsonl"}
    config = observe_samples.config(data=data, evaluation={"samples": 2, "temperature": 1.0})
    prompts = [Prompt(str(number), "p", {}) for number in range(2)]

    async def main(runtime: VirtualRuntime) -> dict[str, Any]:
        services: Any = runtime
        of_set = Evaluation(config.held_out[0], runner, prompts, lambda tokens: "", services, concurrency=2)
        return await of_set.run(INITIAL)

    return run_virtually(main)


def test_the_length_of_responses_is_that_of_those_that_were_scored() -> None:
    """(10 + 14) / 2: what failed, with or without an answer, is in no mean."""
    result = evaluated(Scripted())
    assert (result["drawn"], result["failed"], result["reward_mean"]) == (4, 2, 1.0)
    assert result["response_tokens_mean"] == 12.0


class Failing:
    async def run_group(self, key: GroupKey, prompt: Prompt, *rest: Any, **named: Any) -> Group:
        samples = tuple(empty_sample(key, episode, SampleStatus.FAILED, "engine: x") for episode in range(2))
        return Group(key, prompt.prompt_id, 0, 0, samples)


def test_where_all_failed_there_is_no_length() -> None:
    result = evaluated(Failing())
    assert (result["failed"], result["reward_mean"], result["response_tokens_mean"]) == (4, None, 0.0)
