"""A run's durable record: ledger, journal, checkpoints, metrics and events. Sees ints, strings, bytes and JSON.

What survives:
- the kill of the process, at any moment: every call that returned;
- a power cut: every commit of a checkpoint with all that came before it, and every group that its writer gave a
  receipt for. What the ledger, metrics and events took down after the last commit may be gone; a synced group whose
  attempt the ledger still knows is ready again when the run is opened.
"""

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names

if TYPE_CHECKING:
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

__getattr__ = lazy_names(
    __name__,
    {
        "AttemptRow": "headrace.store.ledger",
        "Best": "headrace.store.best",
        "Checkpoints": "headrace.store.checkpoints",
        "Commit": "headrace.store.checkpoints",
        "ConfigMismatch": "headrace.store.errors",
        "Counts": "headrace.store.counts",
        "DataMismatch": "headrace.store.errors",
        "DiskFull": "headrace.store.errors",
        "EventRow": "headrace.store.records",
        "IllegalTransition": "headrace.store.errors",
        "Journal": "headrace.store.journal",
        "JournalOffset": "headrace.store.segment",
        "JournalWriter": "headrace.store.journal_writer",
        "LawBroken": "headrace.store.errors",
        "Ledger": "headrace.store.ledger",
        "MetricRow": "headrace.store.records",
        "OfflineStore": "headrace.store.offline",
        "Prepared": "headrace.store.checkpoints",
        "Receipt": "headrace.store.segment",
        "Restored": "headrace.store.checkpoints",
        "RunDamaged": "headrace.store.errors",
        "RunExists": "headrace.store.errors",
        "RunInUse": "headrace.store.errors",
        "RunMissing": "headrace.store.errors",
        "RunReader": "headrace.store.reader",
        "RunStatus": "headrace.store.reader",
        "RunStore": "headrace.store.run_store",
        "StoreError": "headrace.store.errors",
    },
)
