"""The steps of an offline trainer, as a sequence and as a frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from headrace.api.table import frame_of
from headrace.observe.offline.record import OfflineStep


class Steps(Sequence[OfflineStep]):
    """What was recorded of each optimiser step, in order."""

    def __init__(self, steps: Sequence[OfflineStep]) -> None:
        self._steps = tuple(steps)

    @overload
    def __getitem__(self, place: int) -> OfflineStep: ...
    @overload
    def __getitem__(self, place: slice) -> Steps: ...
    def __getitem__(self, place: int | slice) -> OfflineStep | Steps:
        return Steps(self._steps[place]) if isinstance(place, slice) else self._steps[place]

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[OfflineStep]:
        return iter(self._steps)

    def __repr__(self) -> str:
        return f"<metrics of {len(self._steps)} steps>"

    def frame(self) -> Any:
        """A pandas frame with a row for each step, by its number. Raises ConfigError without pandas."""
        return frame_of([step.to_json() for step in self._steps], index="step")
