"""One connection that reads an answer along: what it was told, and the bytes of what is new."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.gateway.agents.agent_apis import AgentApi
from headrace.gateway.agents.agent_requests import AgentRequest
from headrace.gateway.agents.answered import Answered
from headrace.gateway.agents.event_stream import EventStream
from headrace.gateway.agents.growing import Live
from headrace.gateway.agents.so_far import SoFar, Told
from headrace.gateway.errors import ApiError
from headrace.gateway.http_json import dumps


class Reader:
    """All that it gives, put together, is the whole stream, wherever it begins to read."""

    def __init__(self, api: AgentApi, asked: AgentRequest) -> None:
        self._api, self._asked = api, asked
        self._told = [Told(index) for index in range(asked.n)]
        self._stream: EventStream | None = None
        self._events = 0

    def news(self, live: Live) -> bytes:
        """Empty where nothing is certain that was not told."""
        return b"" if live.answered is None else self._news(live.answered, live.so_far())

    def rest(self, answered: Answered) -> bytes:
        """Up to the end of the stream."""
        news = self._news(answered, [choice.so_far for choice in answered.choices])
        assert self._stream is not None
        return news + b"".join(_event(*each) for each in self._stream.end()) + self._api.last

    def failure(self, error: ApiError) -> bytes:
        """The end of a stream that breaks off."""
        return _event("error", self._api.failed(error, self._events)) + self._api.last

    def _news(self, answered: Answered, choices: Iterable[SoFar]) -> bytes:
        deltas = [told.news(so_far) for told, so_far in zip(self._told, choices, strict=True)]
        new = [delta for delta in deltas if delta is not None]
        if not new:
            return b""
        if self._stream is None:
            self._stream = self._api.stream(self._asked, answered)
        events = self._stream.news(new)
        self._events += len(events)
        return b"".join(_event(*each) for each in events)


def _event(name: str | None, data: dict[str, Any]) -> bytes:
    named = "" if name is None else f"event: {name}\n"
    return f"{named}data: {dumps(data)}\n\n".encode()
