"""A worker that is perhaps one of several ranks that score together."""

from __future__ import annotations

from typing import Protocol

import torch

from headrace.training.replicas import At, Meeting, MeetingPlace
from headrace.training.rows.row_reader import Beside, RowReader
from headrace.weights.devices import device_name
from headrace.weights.seen import Seen, seen_here


class Joins(Protocol):
    """See `SharedModel`."""

    def join(self, rank: int, meeting: Meeting | At, seconds: float) -> None: ...

    def idle(self) -> None: ...

    @property
    def beside(self) -> Beside | None: ...


class ScoringRank:
    """How ranks come together: see `TrainerRank`. Blocking."""

    def __init__(self, model: Joins, device: torch.device, reader: RowReader) -> None:
        """`device`: of the model's weights. `reader`: by which it comes by its rows."""
        self._joins = model
        self._device = device
        self._reader = reader
        self._meeting = MeetingPlace()
        self._tells = True

    def sees(self) -> Seen:
        """See `TrainerRank.sees`."""
        return seen_here(device_name(self._device))

    def meet(self, seconds: float, host: str) -> At:
        """See `TrainerRank.meet`."""
        return self._meeting.open(seconds, host)

    def come_together(self, rank: int, at: At, seconds: float, tells: bool) -> None:
        """See `TrainerRank.come_together`."""
        self._tells = tells
        self._joins.join(rank, self._meeting.of(at), seconds)
        self._reader.join(self._joins.beside)
