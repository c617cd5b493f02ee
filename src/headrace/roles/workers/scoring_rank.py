"""A worker that is perhaps one of several ranks that score together."""

from __future__ import annotations

from typing import Protocol

from headrace.training.replicas import Meeting


class Joins(Protocol):
    """See `SharedModel`."""

    def join(self, rank: int, meeting: Meeting | int, seconds: float) -> None: ...

    def idle(self) -> None: ...


class ScoringRank:
    """How ranks come together: see `TrainerRank`. Blocking."""

    def __init__(self, model: Joins) -> None:
        self._joins = model
        self._meeting: Meeting | None = None
        self._tells = True

    def meet(self, seconds: float) -> int:
        """See `TrainerRank.meet`."""
        self._meeting = Meeting(seconds)
        return self._meeting.port

    def come_together(self, rank: int, port: int, seconds: float, tells: bool) -> None:
        """See `TrainerRank.come_together`."""
        self._tells = tells
        meeting, self._meeting = self._meeting, None
        self._joins.join(rank, meeting or port, seconds)
