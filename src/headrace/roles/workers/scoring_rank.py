"""A worker that is perhaps one of several ranks that score together."""

from __future__ import annotations

from typing import Protocol

from headrace.training.replicas import At, Meeting
from headrace.weights.seen import Seen, seen_here


class Joins(Protocol):
    """See `SharedModel`."""

    def join(self, rank: int, meeting: Meeting | At, seconds: float) -> None: ...

    def idle(self) -> None: ...


class ScoringRank:
    """How ranks come together: see `TrainerRank`. Blocking."""

    def __init__(self, model: Joins) -> None:
        self._joins = model
        self._meeting: Meeting | None = None
        self._tells = True

    def sees(self) -> Seen:
        """See `TrainerRank.sees`."""
        return seen_here()

    def meet(self, seconds: float, host: str) -> At:
        """See `TrainerRank.meet`."""
        self._meeting = Meeting(seconds, host)
        return self._meeting.at

    def come_together(self, rank: int, at: At, seconds: float, tells: bool) -> None:
        """See `TrainerRank.come_together`."""
        self._tells = tells
        meeting, self._meeting = self._meeting, None
        self._joins.join(rank, meeting or at, seconds)
