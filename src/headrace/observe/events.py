"""Events of a run, and what they go to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

EventSink = Callable[[str, dict[str, Any]], None]
"""Writes an event to the run's record: its kind, and its data, of plain values."""


class Events:
    """Of a part that is there before the run's record, and whose deaths anybody may notice: a record that cannot be
    written is none of theirs, and keeps nobody from hearing of it. Who follows the part hears of the record, by
    `tell_what_is_left`."""

    def __init__(self) -> None:
        self._sink: EventSink | None = None
        self._untold: list[tuple[str, dict[str, Any]]] = []

    def tell_to(self, sink: EventSink) -> None:
        """From now on, and what happened before. Raises whatever the sink raises."""
        self._sink = sink
        self.tell_what_is_left()

    def report(self, kind: str, data: dict[str, Any]) -> None:
        """At once, or when it is next told what is left."""
        self._untold.append((kind, data))
        with suppress(Exception):
            self.tell_what_is_left()

    def tell_what_is_left(self) -> None:
        """What could not be told when it happened. Raises whatever the sink raises."""
        while self._sink is not None and self._untold:
            self._sink(*self._untold[0])
            del self._untold[0]
