"""Models that only score, as roles ask them: on a lane of the run's own process, or in a worker."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from headrace.observe.spent import AtWork
from headrace.roles.model_return import ModelReturn
from headrace.runtime.local.service import on_lane
from headrace.runtime.protocol import Runtime
from headrace.runtime.refs import Ref, Refs, refs_in
from headrace.store.media.files import Digest
from headrace.training.protocol import FrozenModel, Saved, Written
from headrace.training.rank import CHECKPOINTS
from headrace.training.rank_workers import RankWorkers
from headrace.training.rows.packed_rows import RowToTrain
from headrace.training.rows.row_reader import RowReader
from headrace.training.scoring import Scoring
from headrace.training.shared_passes import SharedPasses, of_refs
from headrace.training.taking import taken
from headrace.weights.plane import WeightError, WeightReceiver
from headrace.weights.seen import CPU, Seen, seen_here
from headrace.weights.version import Version

T = TypeVar("T")


class AskedModel(Protocol):
    """One that writes the column of its name."""

    @property
    def name(self) -> str: ...

    @property
    def returns(self) -> ModelReturn | None:
        """What brings it back when it is lost, if it can be."""

    @property
    def workers(self) -> Sequence[str]:
        """The names of its workers."""

    @property
    def lost(self) -> Sequence[str]:
        """The names of those of them that are."""

    async def sees(self) -> Sequence[Seen]:
        """Where each of them is."""

    def busy_s(self) -> dict[str, float]:
        """See `Ranks.busy_s`."""

    async def scores(self, rows: Sequence[RowToTrain]) -> Sequence[Sequence[Any]]:
        """Of each row a ref to the log-probs of its tokens; from one forward pass. Raises RefLost."""

    async def take(self, receivers: Sequence[WeightReceiver]) -> Version:
        """Compute with the newest version from now on. `receivers`: of each worker. Raises WeightError."""

    async def take_state(self, *, copies: bool) -> None:
        """Take its weights for `write_state`: a copy, beside which it may go on, or as they are."""

    async def write_state(self, path: Path) -> Mapping[str, Digest]:
        """Into the folder `path`, which is made. Of files what they hold, where that is known. Raises OSError."""

    async def load(self, path: Path) -> None:
        """What was written. Raises CheckpointError."""


class OnLane:
    """An `AskedModel` of this process."""

    returns = None
    lost = ()

    def __init__(self, model: FrozenModel, name: str, runtime: Runtime) -> None:
        self.name = name
        self._model = model
        self._runtime = runtime
        self._scoring = Scoring(RowReader(runtime.refs), model.logprobs, name)
        self._taken: Saved | None = None
        self._busy = AtWork(runtime.clock.now)

    def busy_s(self) -> dict[str, float]:
        """See `AskedModel.busy_s`."""
        return {self.name: self._busy.seconds(self.name)}

    async def scores(self, rows: Sequence[RowToTrain]) -> Sequence[Sequence[Any]]:
        """See `AskedModel.scores`."""
        with self._busy.at_it(self.name):
            return await self._runtime.compute(self.name, self._scoring, rows)

    @property
    def workers(self) -> Sequence[str]:
        """See `AskedModel.workers`."""
        return (self.name,)

    async def sees(self) -> Sequence[Seen]:
        """See `AskedModel.sees`."""
        return (seen_here(CPU),)

    async def take(self, receivers: Sequence[WeightReceiver]) -> Version:
        """See `AskedModel.take`."""
        (receiver,) = receivers
        return await self._runtime.compute(self.name, taken, self._model, receiver)

    async def take_state(self, *, copies: bool) -> None:
        """See `AskedModel.take_state`."""
        self._taken = await self._runtime.compute(self.name, partial(self._model.saved, copies=copies))

    async def write_state(self, path: Path) -> Mapping[str, Digest]:
        """See `AskedModel.write_state`."""
        own, self._taken = self._taken, None
        assert own is not None, "nothing was taken"
        return (await on_lane(self._runtime, CHECKPOINTS, own.write, path)).files

    async def load(self, path: Path) -> None:
        """See `AskedModel.load`."""
        await self._runtime.compute(self.name, self._model.load, path)


class InRanks:
    """An `AskedModel` of workers, the only ones of their kind: one that has all of it, or ranks that score together."""

    def __init__(self, ranks: RankWorkers, name: str, refs: Refs, max_tokens: int, returns: ModelReturn | None = None):
        """`max_tokens`: of a micro-batch of one of several. `returns` brings it back, where it has processes; else its
        end ends the run, which can be resumed."""
        self.name = name
        self.returns = returns
        self._ranks = ranks
        self._refs = refs
        self._passes = SharedPasses(ranks, max_tokens)

    def busy_s(self) -> dict[str, float]:
        """See `AskedModel.busy_s`."""
        return self._ranks.busy_s(self.name)

    async def scores(self, rows: Sequence[RowToTrain]) -> Sequence[Sequence[Any]]:
        """See `AskedModel.scores`: each row in a micro-batch of one rank."""
        parts = self._passes.parts([len(row) for row in rows])
        given = [[([rows[place] for place in places],) for places in part] for part in parts]
        refs = (ref for row in rows for ref in row.columns.values() if isinstance(ref, Ref))
        async with self._ranks.in_turn():
            what = f"scores of {self.name}"
            asking = self._passes.made("scores", given, ([],), what, reads=True, left=self._free)
            answers = await self._answered(of_refs(lambda: next(refs, None), asking))
        return self._passes.in_order(parts, answers, len(rows))

    @property
    def workers(self) -> Sequence[str]:
        """See `AskedModel.workers`."""
        return self._ranks.names

    @property
    def lost(self) -> Sequence[str]:
        """See `AskedModel.lost`."""
        left = self._ranks.left
        return [name for rank, name in enumerate(self.workers) if rank not in left]

    async def sees(self) -> Sequence[Seen]:
        """See `AskedModel.sees`: it may do so, and be lost with each pass."""
        every = dict.fromkeys(range(len(self.workers)), ())
        return [*(await self._ranks.each("sees", every, what="where it is")).values()]

    async def take(self, receivers: Sequence[WeightReceiver]) -> Version:
        """See `AskedModel.take`."""
        async with self._ranks.in_turn():
            offers = {rank: (receiver.offer(),) for rank, receiver in enumerate(receivers)}
            found = await self._answered(self._ranks.each("take", offers, what="new weights"))
        versions: list[Version] = [*dict.fromkeys(found.values())]
        if len(versions) > 1:
            told = ", ".join(map(str, versions))
            raise WeightError(
                f"ranks of {self.name} took {told}, and rows are scored with one version; --resume the run"
            )
        return versions[0]

    async def take_state(self, *, copies: bool) -> None:
        """See `AskedModel.take_state`."""
        await self._first("take_state", copies, what="what a checkpoint holds")

    async def write_state(self, path: Path) -> Mapping[str, Digest]:
        """See `AskedModel.write_state`."""
        written: Written = await self._first("write_state", str(path), what="its part of a checkpoint")
        return written.files

    async def load(self, path: Path) -> None:
        """See `AskedModel.load`."""
        await self._first("load", str(path), what="its part of a checkpoint")

    async def _first(self, method: str, *arguments: object, what: str) -> Any:
        return await self._answered(self._ranks.call(method, *arguments, what=what))

    async def _answered(self, asking: Awaitable[T]) -> T:
        answer = await asking
        if self.returns is not None:
            self.returns.answered()
        return answer

    def _free(self, answer: object) -> None:
        for ref in refs_in(answer):
            self._refs.free(ref)
