"""The law: issued = running + ready + trained + dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.store.errors import LawBroken
from headrace.store.media.database import Database


@dataclass(frozen=True, slots=True)
class Counts:
    """How many attempts are in each state. `issued` is counted apart from them."""

    issued: int
    running: int
    ready: int
    trained: int
    dropped: Mapping[str, int]
    """By reason."""

    @property
    def accounted(self) -> int:
        return self.running + self.ready + self.trained + sum(self.dropped.values())

    @property
    def law_holds(self) -> bool:
        return self.issued == self.accounted

    def check(self) -> None:
        """Raises LawBroken, with the numbers."""
        if not self.law_holds:
            raise LawBroken(
                f"{self.issued} attempts were issued but {self.accounted} are accounted for ({self.running} running + "
                f"{self.ready} ready + {self.trained} trained + {sum(self.dropped.values())} dropped "
                f"{dict(self.dropped)}): run.db lost or gained rows; put back a copy of it, or start the run again "
                "with --fresh"
            )


_ISSUED = "SELECT 'issued', NULL, value FROM counters WHERE name = 'issued'"
_SINCE = "SELECT state, reason, count(*) FROM attempts NOT INDEXED WHERE sequence > ?"
"""By sequence: an index would lead over all attempts."""
# Given a sequence up to which all are settled, the last such one. An attempt that was trained before the oldest kept
# checkpoint stays so, whatever is restored.
_SETTLED = """
SELECT coalesce(min(first) - 1, (SELECT max(sequence) FROM attempts), 0) FROM (
    SELECT min(sequence) AS first FROM attempts WHERE state = 'running'
    UNION ALL SELECT min(sequence) FROM attempts WHERE state = 'ready'
    UNION ALL SELECT min(sequence) FROM attempts
    WHERE state = 'trained' AND sequence > ? AND batch >= (SELECT min(number) FROM checkpoints)
)"""

Row = tuple[str, str | None, int]
"""State, reason of a drop, how many."""


def count(database: Database) -> Counts:
    # One statement, hence one snapshot while another process writes.
    return _counts(
        database.rows(
            f"{_ISSUED} UNION ALL SELECT state, NULL, count(*) FROM attempts WHERE state != 'dropped' GROUP BY state "
            "UNION ALL SELECT 'dropped', reason, count(*) FROM attempts WHERE state = 'dropped' GROUP BY reason"
        )
    )


class Recount:
    """The same, again and again: attempts that come to nothing else any more, and were issued before all others, are
    counted once. For a reader alone: what a transaction takes back may have been counted."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._upto = 0
        """Sequence of the last attempt of which all up to it are settled."""
        self._settled: Counter[tuple[str, str | None]] = Counter()

    def read(self) -> Counts:
        ((upto,),) = self._database.rows(_SETTLED, (self._upto,))
        for state, reason, number in self._database.rows(
            f"{_SINCE} AND sequence <= ? GROUP BY state, reason", (self._upto, upto)
        ):
            self._settled[state, reason] += number
        self._upto = max(upto, self._upto)
        rows = self._database.rows(f"{_ISSUED} UNION ALL {_SINCE} GROUP BY state, reason", (self._upto,))
        return _counts([*rows, *((*what, number) for what, number in self._settled.items())])


def _counts(rows: Iterable[Row]) -> Counts:
    states: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for state, reason, number in rows:
        if reason is None:
            states[state] += number
        else:
            dropped[reason] += number
    return Counts(
        issued=states["issued"],
        running=states["running"],
        ready=states["ready"],
        trained=states["trained"],
        dropped=dict(dropped),
    )
