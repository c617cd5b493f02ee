"""The record of an offline trainer: run.db with metrics and events, as a run has, and none of a run's other parts."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from headrace.store.errors import RunExists, RunMissing, write_failed
from headrace.store.media.database import Database
from headrace.store.media.files import remove
from headrace.store.media.lock import RunLock
from headrace.store.reader import RunReader
from headrace.store.records import Events, Metrics, write_status
from headrace.store.run_store import DATABASE_NAME, TRACKERS_NAME
from headrace.store.tables import KIND, TRAIN


class OfflineStore:
    """Used from one thread, of the process that owns the folder."""

    def __init__(
        self, lock: RunLock, *, kind: str, config_yaml: str, config_sha256: str, now: float, resumed_at: int
    ) -> None:
        """In the folder that `lock` is of, whose holder releases it behind `close`. `resumed_at`: steps that are done,
        so that what is recorded of later ones counts no longer; 0 begins a record anew, in the place of one that is
        there. `now`: seconds since the epoch.

        Raises RunExists where there is a run of `headrace train`, DiskFull or another StoreError.
        """
        self.path = path = lock.folder
        file = path / DATABASE_NAME
        refuse_run(path)
        with ExitStack() as undo:
            values = {
                KIND: kind,
                "config_yaml": config_yaml,
                "config_sha256": config_sha256,
                "created_at": repr(now),
                "status": "running",
            }
            is_new = resumed_at == 0 or not file.exists()
            try:
                if is_new:
                    for name in (DATABASE_NAME, TRACKERS_NAME):
                        remove(path / name)
                    Database.create(file, values)
            except OSError as error:
                raise write_failed(error, file) from error
            self._database = Database(file)
            undo.callback(self._database.close)
            if not is_new:
                self._database.execute(
                    "INSERT INTO branches SELECT max(branch) + 1, max(branch), ? FROM branches", (resumed_at,)
                )
            ((self.branch,),) = self._database.rows("SELECT max(branch) FROM branches")
            undo.pop_all()
        self.metrics = Metrics(self._database)
        self.events = Events(self._database)
        self.set_status("running")

    def write(self, kind: str, number: int, now: float, record: dict[str, Any]) -> None:
        """A record of the weights after `number` steps."""
        self.metrics.write(self.branch, number, now, record, kind=kind)

    def set_status(self, status: str) -> None:
        """One of running, finished, stopped, failed."""
        write_status(self._database, status)

    def close(self) -> None:
        self._database.close()


def refuse_run(path: Path) -> None:
    """Raises RunExists where the folder holds a run of `headrace train`, whose record would be overwritten."""
    try:
        with RunReader(path) as reader:
            kind = reader.kind
    except RunMissing:
        return
    if kind == TRAIN:
        raise RunExists(f"{path} holds a run of headrace train, which would be overwritten: choose another --dir")
