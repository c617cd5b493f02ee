"""The stream of OpenAI's responses: items one after another, in the order of events that the official client wants."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from headrace.gateway.agents.agent_requests import AgentRequest
from headrace.gateway.agents.answered import Answered, token_logprobs
from headrace.gateway.agents.event_stream import Event, named
from headrace.gateway.agents.responses_api import (
    call_item,
    message_item,
    response_head,
    thought_item,
    whole_response,
)
from headrace.gateway.agents.so_far import Delta

_KINDS = {"message": "response.output_text", "reasoning": "response.reasoning_text"}
"""By the type of an item of text: how its events are called."""


class ResponseStream:
    """See `EventStream`."""

    def __init__(self, asked: AgentRequest, answered: Answered) -> None:
        self._asked, self._answered = asked, answered
        self._told = 0
        """Events."""
        self._items = 0
        """That are done."""
        self._open: dict[str, Any] | None = None
        """The item of text that goes on, with its text so far."""
        self._has_said = False
        """Whether there is an item that says or calls something."""
        self._tokens: list[dict[str, Any]] = []
        """That no event had, where log-probs were asked for: those of thoughts and calls too."""
        self._calls: list[dict[str, Any]] = []
        """Where they were, calls wait for the end of the text, which has all tokens."""

    def news(self, deltas: Sequence[Delta]) -> list[Event]:
        """See `EventStream.news`."""
        number = self._answered.number
        events = [] if self._told else self._begin()
        for delta in deltas:
            self._tokens += token_logprobs(delta.tokens)
            if delta.thought:
                events += self._goes_on(thought_item(number, ""), delta.thought)
            if delta.text:
                events += self._goes_on(message_item(number, ""), delta.text)
            for place, call in enumerate(delta.calls, start=delta.first_call):
                self._has_said = True
                if self._asked.logprobs:
                    self._calls.append(call_item(number, place, call))
                else:
                    events += self._call(call_item(number, place, call))
            if delta.finish_reason is not None and not self._has_said:
                events += self._goes_on(message_item(number, ""), "")
        return self._numbered(events)

    def end(self) -> list[Event]:
        """See `EventStream.end`."""
        whole = whole_response(self._asked, self._answered)
        is_said = self._open is not None and self._open["type"] == "message"
        events = self._goes_on(message_item(self._answered.number, ""), "") if self._tokens and is_said else []
        if self._open is not None and is_said:
            self._open["status"] = whole["output"][self._items]["status"]
        events += self._done()
        for call in self._calls:
            events += self._call(call)
        return self._numbered([*events, {"type": f"response.{whole['status']}", "response": whole}])

    def _numbered(self, events: Sequence[dict[str, Any]]) -> list[Event]:
        first, self._told = self._told, self._told + len(events)
        return named([{**event, "sequence_number": first + place} for place, event in enumerate(events)])

    def _begin(self) -> list[dict[str, Any]]:
        nothing: dict[str, Any] = {"incomplete_details": None, "output": [], "usage": None}
        begun = {**response_head(self._asked, self._answered, "in_progress"), **nothing}
        return [{"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")]

    def _goes_on(self, empty: dict[str, Any], text: str) -> list[dict[str, Any]]:
        """By an item that is `empty` when it begins, unless one of its type is open."""
        events, kind = [], empty["type"]
        if self._open is None or self._open["type"] != kind:
            events = self._done()
            self._open = empty
            self._has_said = self._has_said or kind == "message"
            begun = {**empty, "status": "in_progress", "content": []}
            events.append({"type": "response.output_item.added", "output_index": self._items, "item": begun})
            events.append({"type": "response.content_part.added", **self._at(), "part": deepcopy(empty["content"][0])})
        part, more = self._open["content"][0], {}
        part["text"] += text
        if kind == "message":
            more["logprobs"], self._tokens = self._tokens, []
            part["logprobs"] += more["logprobs"]
        return [*events, {"type": f"{_KINDS[kind]}.delta", **self._at(), "delta": text, **more}]

    def _done(self) -> list[dict[str, Any]]:
        item = self._open
        if item is None:
            return []
        part = item["content"][0]
        name, more = _KINDS[item["type"]], {key: part[key] for key in ("logprobs",) if key in part}
        events = [
            {"type": f"{name}.done", **self._at(), "text": part["text"], **more},
            {"type": "response.content_part.done", **self._at(), "part": part},
            {"type": "response.output_item.done", "output_index": self._items, "item": item},
        ]
        self._open, self._items = None, self._items + 1
        return events

    def _at(self) -> dict[str, Any]:
        """Where in the response the open item's text is."""
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": self._items, "content_index": 0}

    def _call(self, item: dict[str, Any]) -> list[dict[str, Any]]:
        """An item of its own, whole."""
        events = self._done()
        at = {"item_id": item["id"], "output_index": self._items}
        begun = {**item, "status": "in_progress", "arguments": ""}
        arguments = item["arguments"]
        self._items += 1
        return [
            *events,
            {"type": "response.output_item.added", "output_index": at["output_index"], "item": begun},
            {"type": "response.function_call_arguments.delta", **at, "delta": arguments},
            {"type": "response.function_call_arguments.done", **at, "name": item["name"], "arguments": arguments},
            {"type": "response.output_item.done", "output_index": at["output_index"], "item": item},
        ]
