"""A run's durable record: ledger, journal, checkpoints, metrics and events. Sees ints, strings, bytes and JSON.

What survives:
- the kill of the process, at any moment: every call that returned;
- a power cut: every commit of a checkpoint with all that came before it, and every group that its writer gave a
  receipt for. What the ledger, metrics and events took down after the last commit may be gone; a synced group whose
  attempt the ledger still knows is ready again when the run is opened.
"""

from headrace.store.best import Best
from headrace.store.checkpoints import Checkpoints, Commit, Prepared, Restored
from headrace.store.counts import Counts
from headrace.store.errors import (
    ConfigMismatch,
    DataMismatch,
    DiskFull,
    IllegalTransition,
    LawBroken,
    RunDamaged,
    RunExists,
    RunInUse,
    RunMissing,
    StoreError,
)
from headrace.store.journal import Journal
from headrace.store.journal_writer import JournalWriter
from headrace.store.ledger import AttemptRow, Ledger
from headrace.store.offline import OfflineStore
from headrace.store.reader import RunReader, RunStatus
from headrace.store.records import EventRow, MetricRow
from headrace.store.run_store import RunStore
from headrace.store.segment import JournalOffset, Receipt

__all__ = [
    "AttemptRow",
    "Best",
    "Checkpoints",
    "Commit",
    "ConfigMismatch",
    "Counts",
    "DataMismatch",
    "DiskFull",
    "EventRow",
    "IllegalTransition",
    "Journal",
    "JournalOffset",
    "JournalWriter",
    "LawBroken",
    "Ledger",
    "MetricRow",
    "OfflineStore",
    "Prepared",
    "Receipt",
    "Restored",
    "RunDamaged",
    "RunExists",
    "RunInUse",
    "RunMissing",
    "RunReader",
    "RunStatus",
    "RunStore",
    "StoreError",
]
