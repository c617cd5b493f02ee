"""What becomes of the engines of a pool, told to the run's record."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from headrace.observe.events import EventSink


class EngineEvents:
    """An engine's death may be noticed by anybody: a record that cannot be written is none of theirs, and keeps nobody
    from hearing of it. Who follows the engine hears of the record, by `tell_what_is_left`."""

    def __init__(self) -> None:
        self.sink: EventSink = lambda kind, data: None
        """Where they go from now on."""
        self._untold: list[tuple[str, dict[str, Any]]] = []

    def report(self, kind: str, data: dict[str, Any]) -> None:
        """At once, or when it is next told what is left."""
        self._untold.append((kind, data))
        with suppress(Exception):
            self.tell_what_is_left()

    def tell_what_is_left(self) -> None:
        """What could not be told when it happened. Raises whatever the sink raises."""
        while self._untold:
            self.sink(*self._untold[0])
            del self._untold[0]
