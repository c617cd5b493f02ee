"""How an API words an answer that is told as it grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headrace.gateway.agents.so_far import Delta

Event = tuple[str | None, dict[str, Any]]
"""Of a stream: its name, if the API names events, and its data."""


class EventStream(Protocol):
    """One answer to one connection."""

    def news(self, deltas: Sequence[Delta]) -> list[Event]:
        """Some of its choices' news, at least one; before the first of them how the stream begins."""

    def end(self) -> list[Event]:
        """Once all choices have ended, and all was told of them."""


def named(events: Sequence[dict[str, Any]]) -> list[Event]:
    """Events whose name is their type."""
    return [(event["type"], event) for event in events]
