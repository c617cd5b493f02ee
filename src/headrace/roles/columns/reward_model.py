"""The reward model, as the reward role and evaluations ask it: a worker, in the run's process or in one of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.models.packing import plan_microbatches
from headrace.rewards.model_reward import Answered
from headrace.roles.model_return import ModelReturn
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.workers import WorkerError, WorkerLost, Workers


class AskedRewardModel:
    """An `AnswerScorer` that is the only worker of its kind."""

    def __init__(self, workers: Workers[Any], max_tokens: int, returns: ModelReturn | None = None) -> None:
        """`max_tokens`: budget of one forward pass; a longer sample is one of its own. `returns` brings it back, where
        it has a process; else its end ends the run, which can be resumed."""
        self.max_tokens = max_tokens
        self.returns = returns
        self._workers = workers

    async def scores(self, samples: Sequence[Answered]) -> list[float]:
        """See `AnswerScorer.scores`."""
        scores = [0.0] * len(samples)
        for places in plan_microbatches([sample.length for sample in samples], self.max_tokens):
            found = await self._passed([samples[place] for place in places])
            for place, score in zip(places, found, strict=True):
                scores[place] = score
        return scores

    async def _passed(self, samples: list[Answered]) -> list[float]:
        """As often as it takes: its scores are numbers, of which it keeps none."""
        while True:
            try:
                found = await self._pass(samples)
            except WorkerLost as lost:
                if self.returns is None:
                    raise
                await self.returns.after(lost)
                continue
            if self.returns is not None:
                self.returns.answered()
            return found

    async def _pass(self, samples: list[Answered]) -> list[float]:
        try:
            found: list[float] = (await self._workers.call("scores", samples, rank=0, what="scores of reward"))[0]
        except WorkerError as error:
            refs = [sample.tokens for sample in samples if isinstance(sample.tokens, Ref)]
            if error.type == RefLost.__name__ and refs:
                raise RefLost(refs[0]) from error
            raise
        return found
