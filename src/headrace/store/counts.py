"""The law: issued = running + ready + trained + dropped."""

from __future__ import annotations

from collections.abc import Mapping
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


def count(database: Database) -> Counts:
    # One statement, hence one snapshot while another process writes.
    rows = database.rows(
        "SELECT 'issued', NULL, value FROM counters WHERE name = 'issued' "
        "UNION ALL SELECT state, NULL, count(*) FROM attempts WHERE state != 'dropped' GROUP BY state "
        "UNION ALL SELECT 'dropped', reason, count(*) FROM attempts WHERE state = 'dropped' GROUP BY reason"
    )
    states = {state: value for state, _, value in rows if state != "dropped"}
    return Counts(
        issued=states.get("issued", 0),
        running=states.get("running", 0),
        ready=states.get("ready", 0),
        trained=states.get("trained", 0),
        dropped={reason: value for state, reason, value in rows if state == "dropped"},
    )
