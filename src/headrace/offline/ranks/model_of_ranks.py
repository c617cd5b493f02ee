"""A model that ranks train together, each in a process of its own."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.controller.building.model_workers import made
from headrace.offline.model import by_unit
from headrace.offline.ranks.placement import threads_of_rank, with_whole_paths
from headrace.offline.ranks.rank import OfflineRank, OfflineRankSpec
from headrace.offline.trained.of_config import OfflineConfig
from headrace.offline.units import Unit, parts_of, rows_of
from headrace.runtime.apart import Apart
from headrace.runtime.blocking import TurnedLoop
from headrace.runtime.ground import Ground, on_ground
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.workers import Placement, Silence
from headrace.store.media.files import Digest
from headrace.training.group_state import write
from headrace.training.layouts.ranks import Layout, layout_of
from headrace.training.merging import merged
from headrace.training.protocol import StepReport
from headrace.training.rank_workers import RankWorkers, who_saves
from headrace.training.sums import BatchSums

T = TypeVar("T")

_DEADLINE_S = 1800.0
"""Of a checkpoint, the model's files, the ranks' coming together: longer than any of them should take."""
_AS_LONG_AS_IT_GETS_ON = 86_400.0
"""Of passes and steps, which say so themselves, from within: however many they are, `runtime.stuck` ends them, as with
one rank in this process. This is for one that hangs between two of what it tells of."""
_AT_ONCE = 16
"""Micro-batches of a rank that one call without a step is about: what is told of them is a message."""


class ModelOfRanks:
    """Implements `OfflineModel`. Rows go to the ranks that compute with them: those of a part of the data are all told
    its rows, and its head alone answers. Each method raises WorkerLost once a rank is lost, GroundLost once the cluster
    that they are in has ended; those that write or read files raise WaitTimeout, and those that write them
    CheckpointError where what ranks wrote does not add up to the model."""

    def __init__(
        self, loop: TurnedLoop, runtime: InlineRuntime, place: Apart, ranks: RankWorkers, max_tokens: int
    ) -> None:
        """`ranks` are there, in `place`. `max_tokens`: that one of them takes at once."""
        self._loop = loop
        self._runtime = runtime
        self._place = place
        self._ranks = ranks
        self._max_tokens = max_tokens

    @classmethod
    def start(cls, config: OfflineConfig, device: str, steps: int, place: Apart, here: int) -> ModelOfRanks:
        """Once all have loaded the model, and have come together. `place`: of their processes. `here`: how many share
        a machine's processors. Raises what `made` does."""
        layout = layout_of(config.trainer.layout)
        loop = TurnedLoop()
        runtime = InlineRuntime(apart=place)
        stuck = config.runtime.stuck
        where = Placement(
            process=True,
            threads=threads_of_rank(config, here),
            deadline_s=_DEADLINE_S,
            silence=Silence(stuck.event_loop_s, "runtime.stuck.event_loop_s"),
            limits=stuck.limits,
        )

        async def started() -> RankWorkers:
            spec = OfflineRankSpec(with_whole_paths(config), device, steps)
            workers = await made(OfflineRank, spec, runtime, where, layout.size)
            ranks = RankWorkers(workers, runtime.clock, _DEADLINE_S, layout, host=config.runtime.host)
            await ranks.come_together()
            return ranks

        try:
            ranks = loop.run(_standing(place, started(), runtime))
        except BaseException:
            _end(loop, runtime)
            raise
        return cls(
            loop, runtime, place, ranks, config.trainer.max_tokens_per_microbatch * config.trainer.layout.budgets
        )

    def train(self, units: Sequence[Unit]) -> StepReport:
        """See `OfflineModel.train`."""
        parts = self._parts(units)

        async def trained() -> StepReport:
            await self._of_parts("accumulate", units, parts, "rows of a batch")
            report: StepReport = (await self._all("step", what="an optimiser step", seconds=_AS_LONG_AS_IT_GETS_ON))[0]
            return report

        return self._run(trained())

    def measured(self, units: Sequence[Unit]) -> BatchSums:
        """See `OfflineModel.measured`."""
        found = self._run(self._without_step("measured", units, "the loss of held-out rows"))
        return merged([told for _, answers in found for told in answers])

    def logprobs(self, units: Sequence[Unit]) -> list[list[NDArray[np.float32]]]:
        """See `OfflineModel.logprobs`."""
        of_units: list[Any] = [None] * len(units)
        for part, answers in self._run(self._without_step("logprobs", units, "log-probs")):
            for places, of_rows in zip(part, answers, strict=True):
                for place, own in zip(places, by_unit(of_rows, units, places), strict=True):
                    of_units[place] = own
        return of_units

    def save(self, path: Path) -> Mapping[str, Digest]:
        """See `OfflineModel.save`."""
        return self._run(write(self._ranks, "save", who_saves(self._ranks), path.absolute()))

    def load(self, path: Path) -> None:
        """See `OfflineModel.load`."""
        self._run(self._all("load", str(path.absolute()), what="its part of a checkpoint"))

    def export(self, path: Path) -> None:
        """See `OfflineModel.export`."""
        who, what = who_saves(self._ranks), "the model to be written"
        self._run(write(self._ranks, "export", who, path.absolute(), what))

    def close(self) -> None:
        """See `OfflineModel.close`."""
        _end(self._loop, self._runtime)

    @property
    def _layout(self) -> Layout:
        return self._ranks.layout

    def _parts(self, units: Sequence[Unit]) -> list[list[list[int]]]:
        return parts_of(units, self._layout.dp, self._max_tokens, joint=self._layout.joint)

    async def _without_step(
        self, method: str, units: Sequence[Unit], what: str
    ) -> list[tuple[list[list[int]], Sequence[Any]]]:
        """The micro-batches of each part of the data, and what its head answers, some at a time."""
        parts = self._parts(units)
        found = []
        for first in range(0, max(map(len, parts)), _AT_ONCE):
            own = [part[first : first + _AT_ONCE] for part in parts]
            answers = await self._of_parts(method, units, own, what)
            heads = [answers.get(self._layout.head(dp), []) for dp in range(len(own))]
            found += [*zip(([places for places in part if places] for part in own), heads, strict=True)]
        return found

    async def _of_parts(
        self, method: str, units: Sequence[Unit], parts: Sequence[Sequence[Sequence[int]]], what: str
    ) -> dict[int, Any]:
        """What the ranks answer that have something to pass over."""
        rows = [[rows_of(units[place] for place in places) for places in part] for part in parts]
        given = {rank: (rows[at.dp],) for rank, at in self._layout.places() if rows[at.dp]}
        return await self._ranks.each(method, given, what=what, seconds=_AS_LONG_AS_IT_GETS_ON)

    async def _all(self, method: str, *args: Any, what: str, seconds: float | None = None) -> dict[int, Any]:
        every = dict.fromkeys(range(self._layout.size), args)
        return await self._ranks.each(method, every, what=what, seconds=seconds)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(_standing(self._place, coroutine, self._runtime))


async def _standing(place: Apart, work: Coroutine[Any, Any, T], runtime: InlineRuntime) -> T:
    """What `work` gives. Raises GroundLost where it stands on a cluster, and that has ended."""
    return await (on_ground(place, work, runtime) if isinstance(place, Ground) else work)


def _end(loop: TurnedLoop, runtime: InlineRuntime) -> None:
    try:
        loop.run(runtime.close())
    finally:
        loop.close()
