"""Carries what is new in a run's record on to a tracker: each entry once, and none that a restore took back.

An entry is logged, made to last (`Tracker.flush`), and only then noted as logged. After a process that died in between
the last entries are logged again: trackers are first told to go back to what is noted (`Tracker.rewind`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace.observe.offline import record as offline
from headrace.observe.offline.names import held_out_values, step_values
from headrace.observe.offline.record import HeldOutRows, OfflineStep
from headrace.observe.offline.run_record import OfflineWatcher
from headrace.observe.offline.summary import build_summary as summary_of
from headrace.observe.record import BatchRecord
from headrace.observe.run_record import Evaluation, RunWatcher
from headrace.observe.summary import build_summary
from headrace.observe.trackers.names import batch_values, evaluation_values
from headrace.observe.trackers.position import Position
from headrace.observe.trackers.protocol import Tracker
from headrace.observe.trackers.samples import samples_of
from headrace.store import MetricRow, RunReader
from headrace.store.tables import TRAIN

KINDS = ("batch", "eval")
"""Of a run of `headrace train`; others are offline trainers."""
_PAGE = 256
"""Entries that are held at a time."""


class Follower:
    def __init__(self, reader: RunReader, tracker: Tracker, position: Position, path: Path) -> None:
        """`path`: of the position."""
        self._reader = reader
        self._is_offline = reader.kind != TRAIN
        self._kinds = (offline.STEP, offline.EVALUATION) if self._is_offline else KINDS
        self._tracker = tracker
        self._path = path
        self._position = replace(position, tracker_id=tracker.id)
        self._branch: int | None = None
        self._was_open = position.tracker_id is not None
        self._position.write(path)

    def catch_up(self) -> None:
        """Log what the record has by now. Raises what the tracker does; StoreErrors where the record cannot be read."""
        self._go_back()
        while entries := self._reader.metrics.entries(self._kinds, self._position.entry, _PAGE):
            for kind, row in entries:
                self._log(kind, row)
            self._tracker.flush()
            last, highest = entries[-1][1].id, max(row.number for _, row in entries)
            self._position = replace(self._position, entry=last, step=max(self._position.step, highest))
            self._position.write(self._path)

    def close(self) -> None:
        """Log the rest, and how the run ended."""
        self.catch_up()
        if self._is_offline:
            trainer = OfflineWatcher(self._reader).read()
            self._tracker.close(trainer.status, summary_of(trainer))
            return
        run = RunWatcher(self._reader).read()
        self._tracker.close(run.status, build_summary(run))

    def _go_back(self) -> None:
        """A new branch of versions took back what lies beyond the version that it grew from."""
        version = self._reader.version()
        branch = 0 if version is None else version[0]
        if branch == self._branch:
            return
        stands = self._reader.metrics.newest_number(self._kinds, self._position.entry)
        step = -1 if stands is None else stands
        # At first also where nothing was taken back: what was logged may have not been noted.
        if step < self._position.step or (self._branch is None and self._was_open):
            self._tracker.rewind(step)
            self._position = replace(self._position, step=step)
            self._position.write(self._path)
        self._branch = branch

    def _log(self, kind: str, row: MetricRow) -> None:
        if kind == offline.STEP:
            self._tracker.batch(row.number, row.at, step_values(OfflineStep.from_json(row.record)))
        elif self._is_offline:
            self._tracker.evaluation(row.number, row.at, held_out_values(HeldOutRows.from_json(row.record)))
        elif kind == "batch":
            record = BatchRecord.from_json(row.record)
            self._tracker.batch(row.number, row.at, batch_values(record))
            if rows := samples_of(self._reader.path, record.batch):
                self._tracker.samples(row.number, row.at, rows)
        else:
            self._tracker.evaluation(row.number, row.at, evaluation_values(Evaluation.of(row)))
