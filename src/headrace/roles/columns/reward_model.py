"""The reward model, as the reward role and evaluations ask it: workers, in the run's process or in others."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.models.packing import plan_microbatches
from headrace.rewards.model_reward import Answered
from headrace.roles.columns.reward import NAME
from headrace.roles.model_return import ModelReturn
from headrace.runtime.refs import Ref
from headrace.runtime.workers import WorkerLost
from headrace.training.rank_workers import RankWorkers
from headrace.training.shared_passes import SharedPasses, of_refs


class AskedRewardModel:
    """An `AnswerScorer` of workers, the only ones of their kind: one that has all of it, or ranks that score
    together."""

    def __init__(self, ranks: RankWorkers, max_tokens: int, returns: ModelReturn | None = None) -> None:
        """`max_tokens`: budget of one forward pass of all ranks together; a longer sample is one of its own. `returns`
        brings it back, where it has processes; else its end ends the run, which can be resumed."""
        self.max_tokens = max_tokens
        self.returns = returns
        self._ranks = ranks
        self._passes = SharedPasses(ranks, max_tokens // ranks.layout.dp)

    def busy_s(self) -> dict[str, float]:
        """See `Ranks.busy_s`."""
        return self._ranks.busy_s(NAME)

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
        parts = self._passes.parts([sample.length for sample in samples])
        given = [[([samples[place] for place in places],) for places in part] for part in parts]
        refs = (sample.tokens for sample in samples if isinstance(sample.tokens, Ref))
        async with self._ranks.in_turn():
            asking = self._passes.made("scores", given, ([],), f"scores of {NAME}", reads=True)
            answers = await of_refs(lambda: next(refs, None), asking)
        return self._passes.in_order(parts, answers, len(samples))
