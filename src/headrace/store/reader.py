"""A run's record as other processes see it, while it runs or after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from headrace.store.best import Best, read_best
from headrace.store.counts import Counts, Recount
from headrace.store.errors import RunDamaged
from headrace.store.journal import Journal
from headrace.store.media.database import Database
from headrace.store.media.files import LOCAL, Files
from headrace.store.records import EventsReader, MetricsReader
from headrace.store.run_store import DATABASE_NAME
from headrace.store.segment import JournalOffset
from headrace.store.tables import KIND, TRAIN

_LAST_BATCH = 2**62


@dataclass(frozen=True, slots=True)
class RunStatus:
    name: str
    """running, finished, stopped or failed, as the run last said."""
    alive: bool
    """Whether a process owns the run now. `running` without one: it was killed."""
    pid: int | None
    """The process that owns it, or owned it last."""


@dataclass(frozen=True, slots=True)
class JournalledGroup:
    state: str
    """As in the ledger: running, ready, trained or dropped."""
    batch: int
    reason: str | None
    """Why it was dropped."""
    deadline: int
    payload: bytes


class RunReader:
    """Reads without a lock that the run would ever wait for. Raises RunMissing, RunDamaged."""

    def __init__(self, path: Path, files: Files = LOCAL) -> None:
        self.path = path
        self._files = files
        self._database = Database(path / DATABASE_NAME, read_only=True, files=files)
        self.metrics = MetricsReader(self._database)
        self.events = EventsReader(self._database)
        self._recount = Recount(self._database)

    @property
    def config_yaml(self) -> str:
        return self._value("config_yaml")

    @property
    def config_sha256(self) -> str:
        return self._value("config_sha256")

    @property
    def kind(self) -> str:
        """The command that made it: train, sft, rm or dpo."""
        rows = self._database.rows("SELECT value FROM run WHERE name = ?", (KIND,))
        return str(rows[0][0]) if rows else TRAIN

    @property
    def created_at(self) -> float:
        """Seconds since the epoch."""
        return float(self._value("created_at"))

    def counts(self) -> Counts:
        return self._recount.read()

    def version(self) -> tuple[int, int] | None:
        """(branch, number) of the newest branch's newest version: where it forked off, if it made none yet. None if the
        first branch made none."""
        ((branch, number),) = self._database.rows(
            "SELECT b.branch, coalesce(max(v.number), b.parent_number) FROM branches b "
            "LEFT JOIN versions v ON v.branch = b.branch WHERE b.branch = (SELECT max(branch) FROM branches)"
        )
        return None if number is None else (branch, number)

    def committed(self) -> int:
        """The number of the newest checkpoint; 0 if there is none yet."""
        ((number,),) = self._database.rows("SELECT max(number) FROM checkpoints")
        return int(number)

    def settled_groups(self) -> int:
        """Groups that a checkpoint has as trained."""
        ((groups,),) = self._database.rows(
            "SELECT count(*) FROM attempts WHERE state = 'trained' AND batch < (SELECT max(number) FROM checkpoints)"
        )
        return int(groups)

    def begun_epochs(self) -> int:
        """Epochs of the dataset of which a prompt was issued."""
        ((epoch,),) = self._database.rows("SELECT max(epoch) FROM attempts")
        return 0 if epoch is None else epoch + 1

    def checkpoints(self) -> dict[int, str | None]:
        """Of the checkpoints that the run can go back to: name of the folder in `checkpoints/`, by version; None for
        version 0, the initial model."""
        return dict(self._database.rows("SELECT number, folder FROM checkpoints ORDER BY number"))

    def best(self) -> Best | None:
        """The checkpoint that was kept as the best; None if none was."""
        return read_best(self._database)

    def journalled(self, first_batch: int | None = None, last_batch: int | None = None) -> Iterator[JournalledGroup]:
        """Finished groups that are still in the journal, in the order in which they finished. With a limit, of batches
        within it: a group that was not trained counts as of the batch that its deadline is, or was. None of a run of an
        older format, whose journal is not read."""
        if not self._database.is_of_now:
            return
        journal = Journal(self.path / "journal", self._files)
        rows = self._database.rows(
            "SELECT state, coalesce(batch, deadline), reason, deadline, segment, offset, length, writer FROM attempts "
            "WHERE segment IS NOT NULL AND coalesce(batch, deadline) BETWEEN ? AND ? ORDER BY writer, segment, offset",
            (first_batch or 0, _LAST_BATCH if last_batch is None else last_batch),
        )
        for state, batch, reason, deadline, *place in rows:
            with suppress(RunDamaged):  # the segment is gone meanwhile, or what it holds of this group is
                yield JournalledGroup(state, batch, reason, deadline, journal.read(JournalOffset(*place)))

    def journal_bytes(self) -> int:
        """On disk now."""
        return Journal(self.path / "journal", self._files).nbytes

    def status(self) -> RunStatus:
        alive = self._files.is_held(self.path)
        return RunStatus(self._value("status"), alive, self._files.owner(self.path))

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> RunReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _value(self, name: str) -> str:
        ((value,),) = self._database.rows("SELECT value FROM run WHERE name = ?", (name,))
        return value
