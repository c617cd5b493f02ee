"""What a reopened run takes over from its journal."""

from __future__ import annotations

from headrace.store.database import Database
from headrace.store.journal import Journal
from headrace.store.segment import AttemptKey, JournalOffset

# A group may still be trained, or trained again, if it is ready, or was trained after the oldest kept checkpoint.
NEEDED = "(state = 'ready' OR (state = 'trained' AND batch >= (SELECT min(number) FROM checkpoints)))"


def recover(database: Database, journal: Journal) -> frozenset[AttemptKey]:
    """Cut torn ends; running attempts whose group is in the journal become ready. Returns the attempts whose group the
    ledger relies on, and whose record is damaged or gone."""
    needed = {
        (epoch, position, attempt): JournalOffset(segment, offset, length)
        for epoch, position, attempt, segment, offset, length in database.rows(
            f"SELECT epoch, position, attempt, segment, offset, length FROM attempts WHERE {NEEDED}"
        )
    }
    known: dict[int, list[int]] = {}
    for record in needed.values():
        known.setdefault(record.segment, []).extend((record.offset, record.end[1]))
    # What a journal of which all is kept holds of groups that are long settled is not read again.
    finished = journal.recover(known, skip=removable_segments(database, journal))
    with database.transaction():
        since: dict[AttemptKey, tuple[int, int]] = {
            (epoch, position, attempt): (segment, offset)
            for epoch, position, attempt, segment, offset in database.rows(
                "SELECT epoch, position, attempt, since_segment, since_offset FROM attempts WHERE state = 'running'"
            )
        }
        for key, record in finished:
            if key in since and record[:2] >= since[key]:
                _take(database, key, record)
        # Cutting may have moved the journal's end back, so that new records lie before the old mark.
        database.execute("UPDATE attempts SET since_segment = ?, since_offset = ? WHERE state = 'running'", journal.end)
    return frozenset(key for key, _ in needed.items() - set(finished))


def _take(database: Database, key: AttemptKey, record: JournalOffset) -> None:
    database.execute(
        "UPDATE attempts SET state = 'ready', segment = ?, offset = ?, length = ? "
        "WHERE epoch = ? AND position = ? AND attempt = ?",
        (*record, *key),
    )


def removable_segments(database: Database, journal: Journal) -> list[int]:
    """Segments without a group that may be trained again, nor one that is written but not ready yet."""
    kept = {segment for (segment,) in database.rows(f"SELECT DISTINCT segment FROM attempts WHERE {NEEDED}")}
    ((running,),) = database.rows("SELECT min(since_segment) FROM attempts WHERE state = 'running'")
    horizon = journal.end[0] if running is None else min(running, journal.end[0])
    return [segment for segment in journal.segments() if segment < horizon and segment not in kept]
