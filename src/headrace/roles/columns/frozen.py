"""Models that only score, as roles ask them: on a lane of the run's own process, or in a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from headrace.roles.model_return import ModelReturn
from headrace.runtime.protocol import Runtime
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.workers import WorkerError, Workers
from headrace.store.media.files import Digest
from headrace.training.protocol import CheckpointError, FrozenModel, Saved, Written
from headrace.training.rank import CHECKPOINTS
from headrace.training.rows.packed_rows import RowToTrain
from headrace.training.scoring import Scoring
from headrace.training.taking import taken
from headrace.weights.plane import WeightError, WeightReceiver
from headrace.weights.seen import Seen, seen_here
from headrace.weights.version import Version

_LOST = RefLost.__name__
_ERRORS: dict[str, type[Exception]] = {each.__name__: each for each in (CheckpointError, OSError, WeightError)}


class AskedModel(Protocol):
    """One that writes the column of its name."""

    @property
    def name(self) -> str: ...

    @property
    def returns(self) -> ModelReturn | None:
        """What brings it back when it is lost, if it can be."""

    @property
    def worker(self) -> str:
        """The name of its worker."""

    async def sees(self) -> Seen:
        """Where it is."""

    async def scores(self, rows: Sequence[RowToTrain]) -> Sequence[Sequence[Any]]:
        """Of each row a ref to the log-probs of its tokens; from one forward pass. Raises RefLost."""

    async def take(self, receiver: WeightReceiver) -> Version:
        """Compute with the newest version from now on. Raises WeightError."""

    async def take_state(self, *, copies: bool) -> None:
        """Take its weights for `write_state`: a copy, beside which it may go on, or as they are."""

    async def write_state(self, path: Path) -> Mapping[str, Digest]:
        """Into the folder `path`, which is made. Of files what they hold, where that is known. Raises OSError."""

    async def load(self, path: Path) -> None:
        """What was written. Raises CheckpointError."""


class OnLane:
    """An `AskedModel` of this process."""

    returns = None

    def __init__(self, model: FrozenModel, name: str, runtime: Runtime) -> None:
        self.name = name
        self._model = model
        self._runtime = runtime
        self._scoring = Scoring(runtime.refs, model.logprobs, name)
        self._taken: Saved | None = None

    async def scores(self, rows: Sequence[RowToTrain]) -> Sequence[Sequence[Any]]:
        """See `AskedModel.scores`."""
        return await self._runtime.compute(self.name, self._scoring, rows)

    @property
    def worker(self) -> str:
        """See `AskedModel.worker`."""
        return self.name

    async def sees(self) -> Seen:
        """See `AskedModel.sees`."""
        return seen_here()

    async def take(self, receiver: WeightReceiver) -> Version:
        """See `AskedModel.take`."""

        return await self._runtime.compute(self.name, taken, self._model, receiver)

    async def take_state(self, *, copies: bool) -> None:
        """See `AskedModel.take_state`."""
        self._taken = await self._runtime.compute(self.name, partial(self._model.saved, copies=copies))

    async def write_state(self, path: Path) -> Mapping[str, Digest]:
        """See `AskedModel.write_state`."""
        own, self._taken = self._taken, None
        assert own is not None, "nothing was taken"
        return (await self._runtime.compute(CHECKPOINTS, own.write, path)).files

    async def load(self, path: Path) -> None:
        """See `AskedModel.load`."""
        await self._runtime.compute(self.name, self._model.load, path)


class InWorker:
    """An `AskedModel` that is the only worker of its kind."""

    def __init__(self, workers: Workers[Any], name: str, returns: ModelReturn | None = None) -> None:
        """`returns` brings it back, where it has a process; else its end ends the run, which can be resumed."""
        self.name = name
        self.returns = returns
        self._workers = workers

    async def scores(self, rows: Sequence[RowToTrain]) -> Sequence[Sequence[Any]]:
        """See `AskedModel.scores`."""
        try:
            found: Sequence[Sequence[Any]] = await self._call("scores", list(rows), what=f"scores of {self.name}")
        except WorkerError as error:
            if error.type == _LOST:
                raise RefLost(
                    next(ref for row in rows for ref in row.columns.values() if isinstance(ref, Ref))
                ) from error
            raise
        return found

    @property
    def worker(self) -> str:
        """See `AskedModel.worker`."""
        return self._workers.handles[0].worker

    async def sees(self) -> Seen:
        """See `AskedModel.sees`."""
        found: Seen = await self._call("sees", what="where it is")
        return found

    async def take(self, receiver: WeightReceiver) -> Version:
        """See `AskedModel.take`."""
        version: Version = await self._call("take", receiver.offer(), what="new weights")
        return version

    async def take_state(self, *, copies: bool) -> None:
        """See `AskedModel.take_state`."""
        await self._call("take_state", copies, what="what a checkpoint holds")

    async def write_state(self, path: Path) -> Mapping[str, Digest]:
        """See `AskedModel.write_state`."""
        written: Written = await self._call("write_state", str(path), what="its part of a checkpoint")
        return written.files

    async def load(self, path: Path) -> None:
        """See `AskedModel.load`."""
        await self._call("load", str(path), what="its part of a checkpoint")

    async def _call(self, method: str, *arguments: object, what: str) -> Any:
        try:
            answer = (await self._workers.call(method, *arguments, rank=0, what=what))[0]
        except WorkerError as error:
            if error.type in _ERRORS:
                raise _ERRORS[error.type](error.text) from error
            raise
        if self.returns is not None:
            self.returns.answered()
        return answer
