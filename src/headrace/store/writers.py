"""Who writes the journal: each life of a process that does has a number, which no other ever has."""

from __future__ import annotations

from headrace.store.journal import Journal
from headrace.store.media.database import Database

OWN = 0
"""The run's own process, in each of its lives."""


class Writers:
    """Those of an opened run. None of an earlier life of the run writes any more, but for its own process."""

    def __init__(self, database: Database, journal: Journal) -> None:
        # A number that neither has a segment nor an attempt stands for nothing.
        ((assigned,),) = database.rows("SELECT max(writer) FROM attempts")
        self._last: int = max([OWN, assigned or OWN, *(segment.writer for segment in journal.segments())])
        self.at_work = {OWN}
        """Those that may still write."""

    def begin(self) -> int:
        """The number of one more."""
        self._last += 1
        self.at_work.add(self._last)
        return self._last

    def end(self, writer: int) -> None:
        """Nothing is left of it that writes."""
        self.at_work.discard(writer)
