"""Says how far a trainer's pass is, from within the pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.runtime.progress import Marks, current, working


class PassMarks:
    def __init__(self, between_layers: Callable[[], None] | None) -> None:
        """`between_layers`: called whenever a pass is at a layer, by the thread that computes."""
        self._between_layers = between_layers
        self._marks: Marks | None = None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Within, a micro-batch is computed, on the thread of the lane."""
        self._marks = current()
        try:
            with working("microbatch"):
                yield
        finally:
            self._marks = None

    def at_layer(self) -> None:
        """On whichever thread computes a pass: backward passes on a device have one of torch's."""
        if (marks := self._marks) is not None:
            marks.mark("layer")
        if self._between_layers is not None:
            self._between_layers()
