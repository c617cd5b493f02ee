"""The trainer that roles see: its ranks are workers, or on a lane of this process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor

from headrace.algorithms.pieces import PieceError
from headrace.models.packing import PackRow
from headrace.runtime.protocol import Services
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.workers import WorkerError, Workers
from headrace.training.gap import Gap
from headrace.training.protocol import CheckpointError, StepReport
from headrace.training.rank import TrainerRank
from headrace.training.rows.packed_rows import RowToTrain
from headrace.training.rows.spans import StalenessError
from headrace.weights.plane import Manifest, Received, WeightError, WeightOffer, WeightReceiver
from headrace.weights.receiving import receiver_at
from headrace.weights.version import Version

T = TypeVar("T")

_ERRORS: dict[str, type[Exception]] = {
    each.__name__: each for each in (CheckpointError, OSError, PieceError, StalenessError, WeightError)
}
"""What a rank in another process raises, and the caller is to be told as it is."""


class Ranks(Protocol):
    """The ranks of a group, as they are called: all of them, in one order."""

    async def call(self, method: str, *args: Any, what: str) -> Any:
        """What `method` of `TrainerRank` answers."""


class RankHere:
    """The only rank, an object of this process."""

    def __init__(self, rank: TrainerRank, services: Services, lane: str) -> None:
        """Its blocking methods run on `lane`."""
        self._rank = rank
        self._services = services
        self._lane = lane

    async def call(self, method: str, *args: Any, what: str) -> Any:
        """See `Ranks.call`."""
        function = getattr(self._rank, method)
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        return await self._services.compute(self._lane, function, *args)


class RankWorkers:
    """Ranks that are workers; one today. What it raises in this process is raised as it is."""

    def __init__(self, workers: Workers[Any]) -> None:
        self._workers = workers

    async def restart(self) -> None:
        """Make it anew from its spec. Raises WorkerLost."""
        await self._workers.restart(0)

    async def call(self, method: str, *args: Any, what: str) -> Any:
        """See `Ranks.call`. Raises WorkerLost."""
        try:
            return (await self._workers.call(method, *args, rank=0, what=what))[0]
        except WorkerError as error:
            own = error.__cause__
            if not isinstance(own, Exception):
                if error.type in _ERRORS:
                    raise _ERRORS[error.type](error.text) from error
                raise
        raise own  # not while the other is handled: each would come of the other


class TrainerGroup:
    """A model in training. Until `step`, what was accumulated can be discarded."""

    def __init__(self, name: str, ranks: Ranks, receiver: tuple[str, str] | None = None) -> None:
        """`name`: of its kind of worker, and their lane. `receiver`: transport and address of its weights."""
        self.name = name
        self._ranks = ranks
        self._receiver = receiver

    @classmethod
    async def of(cls, name: str, ranks: Ranks) -> TrainerGroup:
        """With ranks that are there."""
        transport, address = await ranks.call("plane", what="where its weights are")
        return cls(name, ranks, (transport, address))

    async def restart(self) -> None:
        """Make its rank anew from its spec, whether or not it was lost. Its receivers follow. Raises WorkerLost."""
        assert isinstance(self._ranks, RankWorkers), f"the {self.name} is no worker"
        await self._ranks.restart()
        self._receiver = await self._call("plane", what="where its weights are")

    async def accumulate(self, rows: Sequence[RowToTrain], coefficient: float | None = None) -> Sequence[Ref]:
        """See `TrainerRank.accumulate`."""
        found: Sequence[Ref] = await self._of_rows(rows, "accumulate", list(rows), coefficient, what="a micro-batch")
        return found

    async def hold(self, batch: int, rows: Sequence[RowToTrain], coefficient: float | None = None) -> None:
        """See `TrainerRank.hold`."""
        await self._of_rows(rows, "hold", batch, list(rows), coefficient, what="a batch's rows")

    async def score_held(self, places: Sequence[int]) -> None:
        """See `TrainerRank.score_held`."""
        await self._call("score_held", list(places), what="log-probs of a micro-batch")

    async def prepare_held(self) -> None:
        """See `TrainerRank.prepare_held`."""
        await self._call("prepare_held", what="what the whole batch decides on")

    async def accumulate_held(self, places: Sequence[int]) -> None:
        """See `TrainerRank.accumulate_held`."""
        await self._call("accumulate_held", list(places), what="a micro-batch")

    async def let_go(self) -> Sequence[Ref | None]:
        """See `TrainerRank.let_go`."""
        found: Sequence[Ref | None] = await self._call("let_go", what="what a batch began with")
        return found

    async def step(self) -> StepReport:
        """See `Trainer.step`."""
        report: StepReport = await self._call("step", what="an optimiser step")
        return report

    async def discard(self) -> None:
        """See `TrainerRank.discard`."""
        await self._call("discard", what="gradients to be forgotten")

    async def scores(self, column: str, rows: Sequence[RowToTrain]) -> Sequence[Sequence[Any]]:
        """Of each row what writes the column, from one forward pass. Raises RefLost."""
        found: Sequence[Sequence[Any]] = await self._of_rows(
            rows, "scores", column, list(rows), what=f"scores of {column}"
        )
        return found

    async def gap(self, rows: Sequence[PackRow], max_tokens: int) -> Gap | None:
        """See `measure`."""
        gap: Gap | None = await self._call("gap", list(rows), max_tokens, what="the gap sample")
        return gap

    async def snapshot(self, version: Version) -> None:
        """Copy the weights as they are. Raises WeightError."""
        await self._call("snapshot", version, what="a copy of the weights")

    async def send(self) -> None:
        """Have the copy received from now on. The trainer may go on meanwhile. Raises WeightError."""
        await self._call("send", what="weights on their way")

    async def publish(self, version: Version) -> None:
        """Both moves at once."""
        await self.snapshot(version)
        await self.send()

    def receiver(self) -> WeightReceiver:
        """A new receiving end of its weights."""
        return Following(self.plane)

    def plane(self) -> tuple[str, str]:
        """Transport and address of its weights, as it is now."""
        assert self._receiver is not None, f"nobody receives the weights of the {self.name}"
        return self._receiver

    async def show_aside(self, version: Version) -> WeightReceiver:
        """The weights as they are, for one receiver alone, until `end_aside`."""
        return receiver_at(*await self._call("show_aside", version, what="weights for one receiver"))

    async def end_aside(self) -> None:
        """See `show_aside`."""
        await self._call("end_aside", what="the end of a publication")

    async def keep_reference(self) -> None:
        """See `PolicyTrainer.keep_reference`."""
        await self._call("keep_reference", what="a copy of the weights")

    async def save(self, path: Path) -> None:
        """See `Trainer.save`. Raises OSError."""
        await self._call("save", str(path), what="its part of a checkpoint")

    async def load(self, path: Path) -> None:
        """See `Trainer.load`. Raises CheckpointError."""
        await self._call("load", str(path), what="its part of a checkpoint")

    async def begin_from(self, path: Path, *, masters: bool, optimizer: bool) -> None:
        """See `Trainer.begin_from`. Raises CheckpointError."""
        await self._call("begin_from", str(path), masters, optimizer, what="another run's state")

    @property
    def kept_reference(self) -> KeptReference:
        """The copy that it keeps of its own weights, as part of a checkpoint."""
        return KeptReference(self._ranks)

    async def _of_rows(self, rows: Sequence[RowToTrain], method: str, *args: Any, what: str) -> Any:
        try:
            return await self._call(method, *args, what=what)
        except WorkerError as error:
            if error.type != RefLost.__name__:
                raise
            lost = next(ref for row in rows for ref in row.columns.values() if isinstance(ref, Ref))
            raise RefLost(lost) from error

    async def _call(self, method: str, *args: Any, what: str) -> Any:
        return await self._ranks.call(method, *args, what=what)


class Following(WeightReceiver):
    """Receives from where the weights are now: a trainer that was made anew publishes in another place."""

    def __init__(self, plane: Callable[[], tuple[str, str]]) -> None:
        """`plane`: transport and address."""
        self._plane = plane
        self._of: tuple[str, str] | None = None
        self._receiver: WeightReceiver | None = None

    def latest(self) -> Version | None:
        """See `WeightReceiver.latest`."""
        return self._now().latest()

    def offer(self) -> WeightOffer | None:
        """See `WeightReceiver.offer`."""
        return self._now().offer()

    def receive(self) -> tuple[Manifest, Mapping[str, Tensor]]:
        """See `WeightReceiver.receive`."""
        return self._now().receive()

    def receive_as(self, make: Callable[[Received], T]) -> T:
        """See `WeightReceiver.receive_as`."""
        return self._now().receive_as(make)

    def received(self) -> Received:
        """See `WeightReceiver.received`."""
        return self._now().received()

    def _now(self) -> WeightReceiver:
        plane, receiver = self._plane(), self._receiver
        if receiver is None or self._of != plane:
            receiver = self._receiver = receiver_at(*plane)
            self._of = plane
        return receiver


class KeptReference:
    """See `TrainerGroup.kept_reference`."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    async def save(self, path: Path) -> None:
        """Into the folder `path`. Raises OSError."""
        await self._ranks.call("save_reference", str(path), what="its part of a checkpoint")

    async def load(self, path: Path) -> None:
        """What `save` wrote. Raises CheckpointError."""
        await self._ranks.call("load_reference", str(path), what="its part of a checkpoint")
