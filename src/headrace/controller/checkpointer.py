"""Makes checkpoints: the trainer's files first, then the one transaction that names them.

What goes into one is copied between two batches, and written beside the next ones. So all of it, whatever is decided
meanwhile, is of the moment of the copy: weights, moments and generators of all models, and the small values that go
with them. The ledger is not part of a checkpoint. Its commit says that batches below its version are settled, which is
true at any later time too; those after it are trained again wherever the run goes back to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from headrace.controller.best import BestCheckpoint
from headrace.observe.events import EventSink
from headrace.observe.failure import words_of
from headrace.observe.spent import CHECKPOINTS, Activity
from headrace.runtime.protocol import Runtime, WaitTimeout
from headrace.runtime.together import together
from headrace.runtime.workers import WorkerLost
from headrace.store import Restored, RunStore
from headrace.store.media.files import Digest
from headrace.training.rank import CHECKPOINTS as LANE
from headrace.weights.version import Version

logger = logging.getLogger(__name__)

EVENT = "checkpoint"
_END_S = 30.0
"""In which one that is written no further has ended."""


class Part(Protocol):
    """Part of a checkpoint."""

    async def take_state(self, *, copies: bool) -> None:
        """What `write_state` is to write: a copy, or what it is, which may not change until it is written."""

    async def write_state(self, path: Path) -> Mapping[str, Digest]:
        """Into the folder `path`. Of files what they hold, by their path there, where that is known. Raises OSError."""

    async def load(self, path: Path) -> None:
        """What was written. Raises CheckpointError."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """A checkpoint that is to be written."""

    version: Version
    folder: Path
    state: Mapping[str, Any]
    copies: bool
    asked: float
    """When it was due, on the runtime's clock."""
    began: float
    """When the one before was written."""
    taken: float
    """When training could go on, if that is a copy."""


class Checkpointer:
    """At most one is being written; the next one waits for it, and training with it."""

    def __init__(
        self,
        store: RunStore,
        trainer: Part,
        runtime: Runtime,
        activity: Activity | None = None,
        *,
        others: Mapping[str, Part] = MappingProxyType({}),
        state: Callable[[], dict[str, Any]] = dict,
        every: int,
        committed: int,
        background: bool = True,
        timeout_s: float = 900.0,
        best: BestCheckpoint | None = None,
        listener: Callable[[int, Path], None] = lambda number, folder: None,
        report: EventSink = lambda kind, data: None,
    ) -> None:
        """`others`: models that go with the policy's, by the name of their folder. `state`: small values
        that go with the weights, taken when a batch is `trained`. `committed`: number of the version that the run could
        be restored to now. `background`: whether training goes on while one is written, beside a copy. `timeout_s`: in
        which one has to be written. `best`: needs checkpoints of its own. `listener` is told of each commit, and
        `report` writes an event of it."""
        self._best = best
        self._listener = listener
        self._report = report
        self._store = store
        self._trainer = trainer
        self._others = others
        self._state = state
        self._state_then: dict[str, Any] = {}
        self._runtime = runtime
        self._activity = activity or Activity()
        self._every = every
        self._background = background
        self._timeout_s = timeout_s
        self._committed = self._begun = committed
        self._writing: asyncio.Task[None] | None = None
        self._failed: Callable[[], None] = lambda: None

    def when_failed(self, failed: Callable[[], None]) -> None:
        """`failed` is called where one cannot be written; why, `settled` raises."""
        self._failed = failed

    def trained(self) -> None:
        """A batch is trained, and nothing of the next one has begun that could change the state."""
        self._state_then = self._state()

    def go_back(self, restored: Restored) -> None:
        """The run goes on from this commit."""
        self._committed = self._begun = restored.number
        self._state_then = dict(restored.state)

    @property
    def committed(self) -> int:
        """Number of the version that the run could be restored to now."""
        return self._committed

    async def after(self, version: Version) -> None:
        """Begin a checkpoint if it is time, and return once training can go on. Raises what `settled` does, also of the
        one before."""
        is_due = self._best is not None and self._best.is_due(version.number)
        if is_due or version.number - self._begun >= self._every:
            await self._begin(version, copies=self._background)

    async def commit(self, version: Version) -> None:
        """Checkpoint now, unless this version has one. The trainer must be between steps, and stay there.

        Raises DiskFull and other StoreErrors; what was committed before stays whole.
        """
        await self.settled()
        if version.number != self._committed:
            await self._begin(version, copies=False)

    async def settled(self) -> None:
        """Until what is being written is committed. Raises DiskFull and other StoreErrors, WorkerLost, WaitTimeout."""
        writing = self._writing
        if writing is None:
            return
        with self._activity.training(CHECKPOINTS):
            try:
                what = f"{writing.get_name()} to be written"
                await self._runtime.clock.wait_for(asyncio.shield(writing), self._timeout_s, what)
            except TimeoutError:
                if not writing.done():
                    await self._give_up(writing)
                raise
        self._writing = None

    async def _give_up(self, writing: asyncio.Task[None]) -> None:
        """Nobody waits for it any more, once it has ended, or does not."""
        self._writing = None
        writing.cancel()
        with suppress(WaitTimeout):
            await self._runtime.clock.wait_for(asyncio.wait([writing]), _END_S, f"the end of {writing.get_name()}")

    async def forget(self) -> None:
        """The trainer, or another of those that write, was lost: what is being written is committed, if it can be
        still, or never will be. Raises what `settled` does, but for such a loss."""
        try:
            await self.settled()
        except WorkerLost as lost:
            logger.info("what was being written is no checkpoint: %s", lost)
        self._writing = None
        self._begun = self._committed

    async def close(self) -> None:
        """As `forget`, where the run ends with an error of its own, which is the one to be raised."""
        writing = self._writing
        try:
            await self.settled()
        except Exception as error:
            what = "the last checkpoint" if writing is None else writing.get_name()
            logger.warning("%s was not written: %s", what, words_of(error))

    async def _begin(self, version: Version, *, copies: bool) -> None:
        clock, checkpoints = self._runtime.clock, self._store.checkpoints
        asked = clock.now()
        with self._activity.training(CHECKPOINTS):
            await self.settled()
            began = clock.now()
            folder = checkpoints.begin(version.number)
            with checkpoints.filling(version.number):
                for part in self._parts(folder).values():
                    await part.take_state(copies=copies)
            taken = _Taken(version, folder, dict(self._state_then), copies, asked, began, clock.now())
            self._begun = version.number
            self._writing = self._runtime.spawn(self._write(taken), f"checkpoint {version.number}")
            if not copies:
                await self.settled()

    async def _write(self, taken: _Taken) -> None:
        version, checkpoints = taken.version, self._store.checkpoints
        try:
            with checkpoints.filling(version.number):
                known = await self._written(taken.folder)
            prepare = partial(checkpoints.prepare, version.number, known=known)
            prepared = await self._runtime.compute(LANE, prepare)
            checkpoints.commit(prepared, branch=version.branch, number=version.number, state=dict(taken.state))
        except Exception:
            self._failed()
            raise
        self._committed = version.number
        if self._best is not None:
            self._best.committed(version.number)
        self._listener(version.number, prepared.path)
        now = self._runtime.clock.now()
        waited_s = (taken.taken if taken.copies else now) - taken.asked
        told = {"waited_s": waited_s, "behind_s": taken.began - taken.asked, "took_s": now - taken.began}
        self._report(EVENT, {"version": str(version), **{name: round(each, 6) for name, each in told.items()}})

    async def _written(self, folder: Path) -> Mapping[str, Digest]:
        """What those who wrote files alone say of them, by their path in the folder."""
        parts = self._parts(folder)
        told = await together(part.write_state(path) for path, part in parts.items())
        return {
            (path / name).relative_to(folder).as_posix(): digest
            for path, files in zip(parts, told, strict=True)
            for name, digest in files.items()
        }

    def _parts(self, folder: Path) -> Mapping[Path, Part]:
        return {folder: self._trainer, **{folder / name: other for name, other in self._others.items()}}
