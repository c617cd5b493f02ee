"""Makes checkpoints: the trainer's files first, then the one transaction that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from headrace.controller.best import BestCheckpoint
from headrace.observe.spent import CHECKPOINTS, Activity
from headrace.roles.actors.actor import TRAINER_LANE
from headrace.runtime.protocol import Runtime
from headrace.store import Restored, RunStore
from headrace.weights.version import Version


class Part(Protocol):
    """Part of a checkpoint."""

    async def take_state(self, *, copies: bool) -> None:
        """What `write_state` is to write: a copy, or what it is, which may not change until it is written."""

    async def write_state(self, path: Path) -> None:
        """Into the folder `path`. Raises OSError."""

    async def load(self, path: Path) -> None:
        """What was written. Raises CheckpointError."""


class Checkpointer:
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
        best: BestCheckpoint | None = None,
        listener: Callable[[int, Path], None] = lambda number, folder: None,
    ) -> None:
        """`others`: models that go with the policy's, by the name of their folder. `state`: small values
        that go with the weights, taken when a batch is `trained`. `committed`: number of the version that the run could
        be restored to now. `best`: needs checkpoints of its own. `listener` is told of each commit."""
        self._best = best
        self._listener = listener
        self._store = store
        self._trainer = trainer
        self._others = others
        self._state = state
        self._state_then: dict[str, Any] = {}
        self._runtime = runtime
        self._activity = activity or Activity()
        self._every = every
        self._committed = committed

    def trained(self) -> None:
        """A batch is trained, and nothing of the next one has begun that could change the state."""
        self._state_then = self._state()

    def go_back(self, restored: Restored) -> None:
        """The run goes on from this commit."""
        self._committed = restored.number
        self._state_then = dict(restored.state)

    @property
    def committed(self) -> int:
        """Number of the version that the run could be restored to now."""
        return self._committed

    def _parts(self, folder: Path) -> Iterator[tuple[Part, Path]]:
        yield self._trainer, folder
        yield from ((other, folder / name) for name, other in self._others.items())

    async def after(self, version: Version) -> None:
        """Checkpoint if it is time."""
        is_due = self._best is not None and self._best.is_due(version.number)
        if is_due or version.number - self._committed >= self._every:
            await self.commit(version)

    async def commit(self, version: Version) -> None:
        """Checkpoint now, unless this version has one. The trainer must be between steps.

        Raises DiskFull and other StoreErrors; what was committed before stays whole.
        """
        if version.number == self._committed:
            return
        checkpoints = self._store.checkpoints
        with self._activity.training(CHECKPOINTS):
            folder = checkpoints.begin(version.number)
            with checkpoints.filling(version.number):
                for part, path in self._parts(folder):
                    await part.take_state(copies=False)
                    await part.write_state(path)
            prepared = await self._runtime.compute(TRAINER_LANE, checkpoints.prepare, version.number)
            self._store.ledger.counts().check()
            checkpoints.commit(prepared, branch=version.branch, number=version.number, state=self._state_then)
        self._committed = version.number
        if self._best is not None:
            self._best.committed(version.number)
        self._listener(version.number, prepared.path)
