"""Answers the prompts of a held-out set with one pinned version, and scores the answers."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from itertools import count
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.config.evaluation import PLAIN, HeldOut, passes
from headrace.engines.place import Place
from headrace.experience.failures import failure_kind
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import EVALUATION_EPOCH, Group, GroupKey, Sample
from headrace.rewards.model_reward import ModelReward
from headrace.rewards.votes import Answer, answer_of
from headrace.rollout import estimates
from headrace.rollout.estimates import Estimate, Scored
from headrace.runtime.off_loop import LANE
from headrace.runtime.protocol import Services
from headrace.runtime.together import together
from headrace.weights.version import Version

_SAMPLES_SHOWN = 3
REWARDS = "reward."
"""Begins the names of metrics that a reward gave beside its score, and of its terms."""
ISSUES = 16
"""Numbers that a run of a set has for the issues of a group: one whose worker was lost takes the next."""


Ended = Callable[[str, Group], Awaitable[None]]


class PromptRunner(Protocol):
    """Draws the episodes of a prompt: in this process, or on workers."""

    async def run_group(
        self,
        key: GroupKey,
        prompt: Prompt,
        start_version: Version,
        deadline: int,
        issue: int = 0,
        place: Place | None = None,
    ) -> Group:
        """See `EpisodeRunner.run_group`."""


class Evaluation:
    """One held-out set. Its noise is that of the set, the prompt and the sample, whatever the version: what two
    versions answer differs by their weights alone."""

    def __init__(
        self,
        held_out: HeldOut,
        runner: PromptRunner,
        prompts: Sequence[Prompt],
        decode: Callable[[NDArray[np.int32]], str],
        services: Services,
        *,
        concurrency: int,
        model_reward: ModelReward | None = None,
        ended: Ended | None = None,
    ) -> None:
        """`runner` draws `held_out.samples` episodes a prompt; `concurrency` prompts are answered at a time. `ended` is
        awaited with the set's name and the answers to each prompt, and may end the evaluation with an error."""
        self.held_out = held_out
        self._ended = ended
        self._model_reward = model_reward
        self._runner = runner
        self._prompts = prompts
        self._decode = decode
        self._services = services
        self._concurrency = concurrency
        self._attempt = 0 if held_out.name == PLAIN else zlib.crc32(held_out.name.encode())
        self._issues = count(0, ISSUES)
        """The first of each run: a server may still have what an earlier one asked."""
        votes = "majority" in held_out.metrics
        self._answer: Answer | None = answer_of(held_out.reward.all_terms[0].function) if votes else None

    async def run(self, version: Version, place: Place | None = None) -> dict[str, Any]:
        """All prompts, answered by `version`, which the engines of `place` (any, unless given) must be pinned to.

        The result has `set` (its name), `score` (the value of its first metric, None if none could be told),
        `reward_mean`, `metrics` (of each `value`, `stderr` and `prompts`; behind the set's own, as `reward.NAME`, what
        its reward gave beside the score, and its terms), `response_tokens_mean` (of the samples that did not fail; 0
        if all did), `prompts`, `drawn` (samples), `failed`, with `failed_by_kind` and `last_failure` (None if none
        failed with a reason), and the first few `samples`. Raises WaitTimeout.
        """
        what = f"the evaluation of {version}" + (f" on {self.held_out.name}" if self.held_out.name != PLAIN else "")
        groups = await self._services.clock.wait_for(self._answers(version, place), self.held_out.timeout_s, what)
        return await self._services.compute(LANE, self._result, groups)

    async def _answers(self, version: Version, place: Place | None) -> list[Group]:
        places = asyncio.Semaphore(self._concurrency)
        issue = next(self._issues)

        async def answer(position: int, prompt: Prompt) -> Group:
            async with places:
                key = GroupKey(EVALUATION_EPOCH, position, self._attempt)
                group = await self._runner.run_group(key, prompt, version, version.number, issue, place)
                if self._ended is not None:
                    await self._ended(self.held_out.name, group)
                return group

        groups = await together(answer(*place) for place in enumerate(self._prompts))
        return groups if self._model_reward is None else await self._model_reward.scored(groups)

    def _result(self, groups: Sequence[Group]) -> dict[str, Any]:
        answers = [_last_of_each(group) for group in groups]
        samples = [sample for of_prompt in answers for sample in of_prompt]
        failures = [sample.failure for sample in samples if sample.reward is None and sample.failure is not None]
        scored = [
            [self._scored(sample, sample.reward) for sample in of_prompt if sample.reward is not None]
            for of_prompt in answers
        ]
        lengths = [sample.response_tokens for sample in samples if sample.reward is not None]
        mean = estimates.mean_reward(scored)
        metrics = {name: self._estimate(name, scored) for name in self.held_out.metrics}
        metrics |= {f"{REWARDS}{name}": found for name, found in _terms(answers).items()}
        shown = [
            {
                "prompt": prompt.content,
                "response": self._decode(of_prompt[0].tokens[of_prompt[0].loss_mask]),
                "reward": of_prompt[0].reward,
            }
            for prompt, of_prompt in list(zip(self._prompts, answers, strict=True))[:_SAMPLES_SHOWN]
        ]
        return {
            "set": self.held_out.name,
            "score": metrics[self.held_out.metrics[0]].value,
            "reward_mean": mean.value,
            "metrics": {name: asdict(estimate) for name, estimate in metrics.items()},
            "response_tokens_mean": sum(lengths) / len(lengths) if lengths else 0.0,
            "prompts": len(groups),
            "drawn": len(samples),
            "failed": len(samples) - len(lengths),
            "failed_by_kind": dict(Counter(failure_kind(failure) for failure in failures).most_common()),
            "last_failure": failures[-1] if failures else None,
            "samples": shown,
        }

    def _scored(self, sample: Sample, reward: float) -> Scored:
        if self._answer is None:
            return Scored(reward)
        return Scored(reward, self._answer(self._decode(sample.tokens[sample.loss_mask])))

    def _estimate(self, metric: str, scored: estimates.Prompts) -> Estimate:
        if metric == "mean":
            return estimates.mean_reward(scored)
        k, pass_at = passes(metric), self.held_out.pass_at
        if k is None:
            return estimates.majority(scored, pass_at=pass_at)
        return estimates.pass_at_k(scored, k, pass_at=pass_at)


def _last_of_each(group: Group) -> list[Sample]:
    """Of each episode its last sample, which its reward is about."""
    return list({sample.episode: sample for sample in group.samples}.values())


def _terms(answers: Sequence[Sequence[Sample]]) -> dict[str, Estimate]:
    """Of the samples of each prompt that were scored, the mean of each term that any of them has."""
    scored = [[sample.terms for sample in of_prompt if sample.reward is not None] for of_prompt in answers]
    names = sorted({name for of_prompt in scored for terms in of_prompt for name in terms})
    return {
        name: estimates.mean_reward([[Scored(terms[name]) for terms in each if name in terms] for each in scored])
        for name in names
    }
