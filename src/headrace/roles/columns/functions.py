"""The user's functions that compute columns, and advantages of tokens: what is called, and how roles ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.algorithms.estimate import AdvantageEstimator
from headrace.algorithms.kl_controllers import KLCoefficient
from headrace.algorithms.pieces import Pieces
from headrace.config import TrainConfig
from headrace.config.algorithm import KLConfig
from headrace.experience.columns import Columned, FinishedGroup
from headrace.experience.drops import NothingToTrain
from headrace.roles.columns.own_stage import OwnStage
from headrace.roles.columns.token_advantages import TokenAdvantages
from headrace.runtime.refs import Ref, Refs

LANE = "functions"
"""Where they compute; also the worker's kind."""

Columns = Mapping[str, Sequence[Ref]]
"""Of each column a ref for each row."""


class FunctionsLost(NothingToTrain):
    """Their worker was lost too often: the run stops, with a checkpoint."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """Of tokens."""

    columns: Columns
    coefficient: float | None = None
    """Of the KL, for the next batch; None where it does not move by this one."""


class AskedFunctions(Protocol):
    """In the place where they are. Raises PieceError for a function that fails, RefLost, and WorkerLost: then the
    leases of who asked have ended."""

    async def stage(self, name: str, rows: Sequence[Columned], groups: Sequence[FinishedGroup]) -> Columns:
        """What the stage `name` writes. `groups`: of the rows, if it reads them."""

    async def advantages(self, rows: Sequence[Columned], beta: float, *, moves: bool) -> Advantages:
        """Of whole groups, with this coefficient of the KL. `moves`: the next one follows from the KL of these."""

    async def coefficient(self, beta: float, kl: float, samples: int) -> float:
        """What follows on `beta` after a batch of `samples` with this KL, summed over all of them."""


class Functions:
    """The functions themselves. Blocking; call it on one compute lane."""

    def __init__(
        self,
        stages: Mapping[str, OwnStage],
        advantages: TokenAdvantages,
        kl: KLConfig,
        controller: Callable[[float, float, int], float] | None = None,
    ) -> None:
        """`controller`: the user's own; see `Pieces.kl_controller`."""
        self._stages = stages
        self._advantages = advantages
        self._kl = kl
        self._controller = controller

    @staticmethod
    def of(
        config: TrainConfig, pieces: Pieces, stages: Sequence[Callable[..., Any]], refs: Refs, reads: Sequence[str]
    ) -> Functions:
        """Those of a run. `stages`: functions of `algorithm.stages`, in their order. `reads`: columns that the stage of
        advantages declares."""
        algorithm = config.algorithm
        own = {
            stage.name: OwnStage(
                refs, function, name=stage.name, reads=stage.reads, writes=stage.writes, by_row=stage.unit == "row"
            )
            for stage, function in zip(algorithm.stages, stages, strict=True)
        }
        estimator = AdvantageEstimator(algorithm, max_length=config.rollout.sampling.max_new_tokens, pieces=pieces)
        advantages = TokenAdvantages(refs, estimator, reads, algorithm.advantage_reads)
        return Functions(own, advantages, algorithm.kl, pieces.kl_controller)

    def stage(self, name: str, rows: Sequence[Columned], groups: Sequence[FinishedGroup]) -> Columns:
        """See `AskedFunctions.stage`."""
        return self._stages[name](rows, groups)

    def advantages(self, rows: Sequence[Columned], beta: float, moves: bool) -> Advantages:
        """See `AskedFunctions.advantages`."""
        columns, paid = self._advantages(rows, beta)
        if paid is None or not moves:
            return Advantages(columns)
        episodes = len({(row.header.key, row.header.episode) for row in rows})
        return Advantages(columns, self.coefficient(beta, paid, episodes))

    def coefficient(self, beta: float, kl: float, samples: int) -> float:
        """See `AskedFunctions.coefficient`."""
        now = KLCoefficient(self._kl, self._controller)
        now.restore({"kl_coefficient": beta})
        return now.after(kl, samples)
