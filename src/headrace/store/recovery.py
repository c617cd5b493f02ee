"""What a reopened run takes over from its journal."""

from __future__ import annotations

from collections.abc import Collection

from headrace.store.journal import Journal, SegmentId
from headrace.store.media.database import Database
from headrace.store.segment import AttemptKey, JournalOffset
from headrace.store.writers import OWN

# A group may still be trained, or trained again, if it is ready, or was trained after the oldest kept checkpoint.
NEEDED = "(state = 'ready' OR (state = 'trained' AND batch >= (SELECT min(number) FROM checkpoints)))"


def recover(database: Database, journal: Journal) -> frozenset[AttemptKey]:
    """Cut torn ends; running attempts whose group is in the journal become ready, whichever writer wrote it. Returns
    the attempts whose group the ledger relies on, and whose record is damaged or gone."""
    needed = {
        (epoch, position, attempt): JournalOffset(segment, offset, length, writer)
        for epoch, position, attempt, segment, offset, length, writer in database.rows(
            f"SELECT epoch, position, attempt, segment, offset, length, writer FROM attempts WHERE {NEEDED}"
        )
    }
    known: dict[SegmentId, list[int]] = {}
    for place in needed.values():
        known.setdefault(SegmentId(place.writer, place.segment), []).extend((place.offset, place.end[1]))
    # What a journal of which all is kept holds of groups that are long settled is not read again.
    finished = list(journal.recover(known, skip=removable_segments(database, journal, {OWN})))
    with database.transaction():
        running = {
            (epoch, position, attempt): (issue, writer, since)
            for epoch, position, attempt, issue, writer, *since in database.rows(
                "SELECT epoch, position, attempt, issue, writer, since_segment, since_offset FROM attempts "
                "WHERE state = 'running'"
            )
        }
        for key, issue, place in finished:
            if key not in running:
                continue
            issued, writer, since = running[key]
            if issue == issued and place.writer == writer and [place.segment, place.offset] >= since:
                _take(database, key, place)
        # Cutting may have moved a writer's end back, so that new records lie before the old mark.
        for (writer,) in database.rows("SELECT DISTINCT writer FROM attempts WHERE state = 'running'"):
            database.execute(
                "UPDATE attempts SET since_segment = ?, since_offset = ? WHERE state = 'running' AND writer = ?",
                (*journal.end(writer), writer),
            )
    return frozenset(key for key, _ in needed.items() - {(key, place) for key, _, place in finished})


def _take(database: Database, key: AttemptKey, place: JournalOffset) -> None:
    database.execute(
        "UPDATE attempts SET state = 'ready', segment = ?, offset = ?, length = ?, writer = ? "
        "WHERE epoch = ? AND position = ? AND attempt = ?",
        (*place, *key),
    )


def removable_segments(database: Database, journal: Journal, at_work: Collection[int]) -> list[SegmentId]:
    """Segments without a group that may be trained again, nor one that is written but not ready yet; never the last one
    of a writer that is `at_work`."""
    kept = {
        SegmentId(writer, segment)
        for writer, segment in database.rows(f"SELECT DISTINCT writer, segment FROM attempts WHERE {NEEDED}")
    }
    since = dict(
        database.rows("SELECT writer, min(since_segment) FROM attempts WHERE state = 'running' GROUP BY writer")
    )
    segments = journal.segments()
    written = {segment.writer: segment.number for segment in segments if segment.writer in at_work}
    """By writer, the last one: they are in order."""
    return [
        segment
        for segment in segments
        if segment not in kept
        and all(segment.number < first[segment.writer] for first in (written, since) if segment.writer in first)
    ]
