"""Makes checkpoints: the trainer's files first, then the one transaction that names them."""

from __future__ import annotations

from pathlib import Path

from headrace.roles.actor import TRAINER_LANE
from headrace.runtime.protocol import Runtime
from headrace.store import RunStore
from headrace.training.protocol import Trainer
from headrace.weights.version import Version


class Checkpointer:
    def __init__(
        self,
        store: RunStore,
        trainer: Trainer,
        runtime: Runtime,
        *,
        critic: Trainer | None = None,
        every: int,
        committed: int,
    ) -> None:
        """`committed`: number of the version that the run could be restored to now."""
        self._store = store
        self._trainer = trainer
        self._critic = critic
        self._runtime = runtime
        self._every = every
        self._committed = committed

    async def after(self, version: Version) -> None:
        """Checkpoint if it is time."""
        if version.number - self._committed >= self._every:
            await self.commit(version)

    async def commit(self, version: Version) -> None:
        """Checkpoint now, unless this version has one. The trainer must be between steps.

        Raises DiskFull and other StoreErrors; what was committed before stays whole.
        """
        if version.number == self._committed:
            return
        prepared = await self._runtime.compute(
            TRAINER_LANE, self._store.checkpoints.prepare, version.number, self._save
        )
        self._store.ledger.counts().check()
        self._store.checkpoints.commit(prepared, branch=version.branch, number=version.number, state={})
        self._committed = version.number

    def _save(self, folder: Path) -> None:
        self._trainer.save(folder)
        if self._critic is not None:
            self._critic.save(folder / CRITIC)


CRITIC = "critic"
"""The critic's part of a checkpoint."""
