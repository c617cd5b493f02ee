"""The groups that a run was trained on, as far as its journal still holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.store.journal import Journal, SegmentId
from headrace.store.media.database import Database
from headrace.store.run_store import DATABASE_NAME
from headrace.store.segment import AttemptKey, JournalOffset
from headrace.store.tables import RUN


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    key: AttemptKey
    prompt_id: str
    batch: int
    """That it was trained in."""
    offset: JournalOffset


@dataclass(frozen=True, slots=True)
class Recorded:
    config_yaml: str
    sizes: dict[int, int]
    """Groups of each committed batch."""
    groups: tuple[RecordedGroup, ...]
    """Those whose segment is there, by batch, then by key."""
    read: Callable[[JournalOffset], bytes]
    """The payload of a group; safe on any thread. Raises RunDamaged."""


_RECORDED = replace(
    RUN,
    oldest_read=RUN.version,
    otherwise="train on its rollouts with the headrace that made it, or record them again with this one",
)


def read_recorded(path: Path) -> Recorded:
    """Of committed batches only: no restore of a run that goes on takes those back. Raises RunMissing, RunDamaged, and
    StoreError for a run of an older format, whose journal is not read."""
    database = Database(path / DATABASE_NAME, read_only=True, layout=_RECORDED)
    try:
        ((config,),) = database.rows("SELECT value FROM run WHERE name = 'config_yaml'")
        rows = database.rows(
            "SELECT epoch, position, attempt, prompt_id, batch, segment, offset, length, writer FROM attempts "
            "WHERE state = 'trained' AND batch < (SELECT max(number) FROM checkpoints) "
            "ORDER BY batch, epoch, position, attempt"
        )
    finally:
        database.close()
    journal = Journal(path / "journal")
    there = set(journal.segments())
    groups = (
        RecordedGroup((epoch, position, attempt), prompt_id, batch, JournalOffset(*place))
        for epoch, position, attempt, prompt_id, batch, *place in rows
        if SegmentId(place[3], place[0]) in there
    )
    return Recorded(config, dict(Counter(row[4] for row in rows)), tuple(groups), journal.read)
