"""The state of every attempt: issued -> running -> ready -> trained(batch) | dropped(reason)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.store.counts import Counts, count
from headrace.store.errors import IllegalTransition
from headrace.store.journal import Journal
from headrace.store.media.database import Database
from headrace.store.segment import AttemptKey, JournalOffset, Receipt

STATES = ("running", "ready", "trained", "dropped")
_KEY = "epoch = ? AND position = ? AND attempt = ?"


@dataclass(frozen=True, slots=True)
class AttemptRow:
    key: AttemptKey
    """(epoch, position, attempt)."""
    prompt_id: str
    start_version: int
    deadline: int
    offset: JournalOffset | None
    """Where its group is in the journal; None until it has been ready."""
    batch: int | None
    """Only of a trained attempt."""
    reason: str | None
    """Only of a dropped attempt."""
    row: int | None = None
    """Of the dataset: which was drawn for the position."""
    pass_rate: float | None = None
    """Share of its episodes that passed, where a curriculum asks for it."""
    issue: int = 0
    """How often it was given out before: a result of an earlier issue is not its own."""


class Ledger:
    """Every method is one transaction (or part of the store's open one).

    A transition that is not allowed raises IllegalTransition, and changes nothing.
    """

    def __init__(self, database: Database, journal: Journal) -> None:
        self._database = database
        self._journal = journal
        self._ends: dict[int, tuple[int, int]] = {}
        """Of each writer, where its newest record that is known ends: what it writes from now on lies behind."""

    def issue(
        self,
        key: AttemptKey,
        *,
        prompt_id: str,
        start_version: int,
        deadline: int,
        row: int | None = None,
        writer: int = 0,
    ) -> None:
        """A new attempt, now running, whose first issue has number 0. Earlier attempts at the same prompt of the epoch
        must have been dropped. `row`: of the dataset. `writer`: who is to journal its group."""
        epoch, position, attempt = key
        with self._database.transaction():
            rivals = self._database.rows(
                "SELECT attempt, state FROM attempts "
                "WHERE epoch = ? AND position = ? AND (attempt >= ? OR state != 'dropped')",
                key,
            )
            if rivals:
                other, state = rivals[0]
                raise IllegalTransition(
                    f"cannot issue attempt {_name(key)}: attempt {other} at that prompt is {state}; issue an attempt "
                    "with a higher number, once the earlier ones are dropped"
                )
            self._database.execute(
                "INSERT INTO attempts (epoch, position, attempt, prompt_id, start_version, deadline, state, "
                "writer, since_segment, since_offset, row) VALUES (?, ?, ?, ?, ?, ?, 'running', ?, ?, ?, ?)",
                (epoch, position, attempt, prompt_id, start_version, deadline, writer, *self._end(writer), row),
            )
            self._database.execute("UPDATE counters SET value = value + 1 WHERE name = 'issued'")

    def reissue(self, key: AttemptKey, *, start_version: int, deadline: int, writer: int = 0) -> int:
        """Give a running attempt out again. It is still the same attempt, so nothing is counted; but only a group of
        the number that is returned can make it ready from now on."""
        changed = self._database.execute(
            "UPDATE attempts SET start_version = ?, deadline = ?, issue = issue + 1, writer = ?, since_segment = ?, "
            f"since_offset = ? WHERE {_KEY} AND state = 'running'",
            (start_version, deadline, writer, *self._end(writer), *key),
        )
        self._expect(changed, key, "reissue", "running")
        ((issue,),) = self._database.rows(f"SELECT issue FROM attempts WHERE {_KEY}", key)
        return int(issue)

    def assign(self, key: AttemptKey, *, issue: int, writer: int) -> None:
        """This issue of a running attempt is played by who journals as `writer`."""
        changed = self._database.execute(
            f"UPDATE attempts SET writer = ?, since_segment = ?, since_offset = ? WHERE {_KEY} AND state = 'running' "
            "AND issue = ?",
            (writer, *self._end(writer), *key, issue),
        )
        self._expect(changed, key, "assign", f"running, and issue {issue} of it")

    def withdraw(self, key: AttemptKey) -> None:
        """A running attempt is to be reissued, later: nothing that comes of the issue that was given out, nor what
        recovery finds of it, makes it ready any more."""
        changed = self._database.execute(
            f"UPDATE attempts SET issue = issue + 1 WHERE {_KEY} AND state = 'running'", key
        )
        self._expect(changed, key, "withdraw", "running")

    def due(self, key: AttemptKey, *, deadline: int) -> None:
        """A running attempt has another deadline."""
        changed = self._database.execute(
            f"UPDATE attempts SET deadline = ? WHERE {_KEY} AND state = 'running'", (deadline, *key)
        )
        self._expect(changed, key, "set the deadline of", "running")

    def ready(self, receipt: Receipt, *, pass_rate: float | None = None, composing: int | None = None) -> None:
        """A running attempt's group is in the journal, for good. `composing`: the batch at hand, where it has a
        `pass_rate`."""
        key, issue, place = receipt
        changed = self._database.execute(
            "UPDATE attempts SET state = 'ready', segment = ?, offset = ?, length = ?, pass_rate = ?, scored_in = ? "
            f"WHERE {_KEY} AND state = 'running' AND issue = ? AND writer = ?",
            (*place[:3], pass_rate, None if pass_rate is None else composing, *key, issue, place.writer),
        )
        self._expect(changed, key, "make ready", f"running, and issue {issue} of it given to writer {place.writer}")
        self._ends[place.writer] = max(self._end(place.writer), place.end)

    def score(self, key: AttemptKey, *, pass_rate: float, composing: int) -> None:
        """A ready attempt that a crash kept from being scored."""
        changed = self._database.execute(
            f"UPDATE attempts SET pass_rate = ?, scored_in = ? WHERE {_KEY} AND state = 'ready'",
            (pass_rate, composing, *key),
        )
        self._expect(changed, key, "score", "ready")

    def lose(self, key: AttemptKey) -> None:
        """A ready attempt's group can no more be read from the journal: it is running again, to be reissued."""
        changed = self._database.execute(
            "UPDATE attempts SET state = 'running', segment = NULL, offset = NULL, length = NULL, pass_rate = NULL, "
            f"scored_in = NULL WHERE {_KEY} AND state = 'ready'",
            key,
        )
        self._expect(changed, key, "lose the group of", "ready")

    def train(self, keys: Iterable[AttemptKey], *, batch: int) -> None:
        """Ready attempts have been trained in `batch`: all of them, or on an error none.

        Provisional until a checkpoint with a number above `batch` commits.
        """
        with self._database.transaction():
            ((committed,),) = self._database.rows("SELECT max(number) FROM checkpoints")
            if batch < committed:
                raise IllegalTransition(
                    f"cannot train in batch {batch}: the checkpoint of version {committed} has committed it; "
                    f"the next batch is {committed} or later"
                )
            for key in keys:
                changed = self._database.execute(
                    f"UPDATE attempts SET state = 'trained', batch = ? WHERE {_KEY} AND state = 'ready'", (batch, *key)
                )
                self._expect(changed, key, "train", "ready")

    def drop(self, key: AttemptKey, reason: str) -> None:
        """A running or ready attempt will not be trained."""
        changed = self._database.execute(
            f"UPDATE attempts SET state = 'dropped', reason = ? WHERE {_KEY} AND state IN ('running', 'ready')",
            (reason, *key),
        )
        self._expect(changed, key, "drop", "running or ready")

    def counts(self) -> Counts:
        return count(self._database)

    def attempts(self, state: str) -> list[AttemptRow]:
        """The attempts in a state, in the order in which they were first issued."""
        if state not in STATES:
            raise ValueError(f"no state {state!r}; the states are {', '.join(STATES)}")
        return self._attempts("state = ? ORDER BY sequence", state)

    def trained_since(self, batch: int) -> list[AttemptRow]:
        """The attempts that were trained in `batch` or later, batch after batch."""
        return self._attempts("state = 'trained' AND batch >= ? ORDER BY batch, sequence", batch)

    def _attempts(self, where: str, *parameters: Any) -> list[AttemptRow]:
        rows = self._database.rows(
            "SELECT epoch, position, attempt, prompt_id, start_version, deadline, segment, offset, length, writer, "
            f"issue, batch, reason, row, pass_rate FROM attempts WHERE {where}",
            parameters,
        )
        return [_attempt(row) for row in rows]

    def frontier(self) -> tuple[int, int] | None:
        """The last (epoch, position) that was issued: where the dataset goes on. None before the first."""
        rows = self._database.rows("SELECT epoch, position FROM attempts ORDER BY epoch DESC, position DESC LIMIT 1")
        return (rows[0][0], rows[0][1]) if rows else None

    def row(self, epoch: int, position: int) -> int | None:
        """Which row of the dataset was drawn for a position; None if none was yet."""
        rows = self._database.rows(
            "SELECT row FROM attempts WHERE epoch = ? AND position = ? AND row IS NOT NULL LIMIT 1", (epoch, position)
        )
        return int(rows[0][0]) if rows else None

    def drawn(self) -> list[tuple[int, int, int]]:
        """(epoch, position, row) of every position that was issued, in their order."""
        rows = self._database.rows(
            "SELECT epoch, position, row FROM attempts WHERE attempt = 0 AND row IS NOT NULL ORDER BY epoch, position"
        )
        return [(epoch, position, row) for epoch, position, row in rows]

    def pass_rates(self, first: int, before: int) -> list[tuple[int, float]]:
        """(row, pass rate) of groups that were ready while a batch from `first` to below `before` was composed: batch
        after batch, and in the order in which they were issued."""
        rows = self._database.rows(
            "SELECT row, pass_rate FROM attempts WHERE pass_rate IS NOT NULL AND row IS NOT NULL "
            "AND scored_in >= ? AND scored_in < ? ORDER BY scored_in, sequence",
            (first, before),
        )
        return [(row, rate) for row, rate in rows]

    def latest_attempt(self, epoch: int, position: int) -> int | None:
        """The highest attempt number issued for a prompt of an epoch."""
        ((attempt,),) = self._database.rows(
            "SELECT max(attempt) FROM attempts WHERE epoch = ? AND position = ?", (epoch, position)
        )
        return attempt

    def _end(self, writer: int) -> tuple[int, int]:
        if writer not in self._ends:
            self._ends[writer] = self._journal.end(writer)
        return self._ends[writer]

    def _expect(self, changed: int, key: AttemptKey, action: str, allowed: str) -> None:
        if changed == 1:
            return
        rows = self._database.rows(f"SELECT state FROM attempts WHERE {_KEY}", key)
        state = rows[0][0] if rows else "unknown"
        raise IllegalTransition(f"cannot {action} attempt {_name(key)}: it is {state}, and must be {allowed}")


def _attempt(row: Sequence[Any]) -> AttemptRow:
    epoch, position, attempt, prompt_id, start_version, deadline, segment, offset, length, writer, *more = row
    issue, batch, reason, drawn, pass_rate = more
    return AttemptRow(
        key=(epoch, position, attempt),
        prompt_id=prompt_id,
        start_version=start_version,
        deadline=deadline,
        offset=None if segment is None else JournalOffset(segment, offset, length, writer),
        issue=issue,
        batch=batch,
        reason=reason,
        row=drawn,
        pass_rate=pass_rate,
    )


def _name(key: AttemptKey) -> str:
    epoch, position, attempt = key
    return f"{epoch}/{position}#{attempt}"
