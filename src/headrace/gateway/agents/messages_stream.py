"""The stream of Anthropic's messages: blocks one after another, each begun, added to and stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from headrace.gateway.agents.answered import Answered
from headrace.gateway.agents.event_stream import Event, named
from headrace.gateway.agents.messages_api import message_head, tool_use, whole_message
from headrace.gateway.agents.so_far import Delta

_TEXT: dict[str, Any] = {"type": "text", "text": ""}
_THINKING: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}


class MessageStream:
    """See `EventStream`."""

    def __init__(self, answered: Answered) -> None:
        self._answered = answered
        self._is_begun = False
        self._blocks = 0
        self._open: str | None = None
        """The type of the block that goes on."""
        self._has_said = False
        """Whether there is a block that says or calls something."""

    def news(self, deltas: Sequence[Delta]) -> list[Event]:
        """See `EventStream.news`."""
        events = [] if self._is_begun else [self._begin()]
        for delta in deltas:
            if delta.thought:
                events += self._goes_on(_THINKING, {"type": "thinking_delta", "thinking": delta.thought})
            if delta.text:
                events += self._goes_on(_TEXT, {"type": "text_delta", "text": delta.text})
            for call in delta.calls:
                used = tool_use(call)
                data = json.dumps(used["input"], ensure_ascii=False)
                events += self._stop()
                events += self._goes_on({**used, "input": {}}, {"type": "input_json_delta", "partial_json": data})
            if delta.finish_reason is not None and not self._has_said:
                events += self._goes_on(_TEXT, {"type": "text_delta", "text": ""})
        return named(events)

    def end(self) -> list[Event]:
        """See `EventStream.end`."""
        whole = whole_message(self._answered)
        ended = {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
        last = {"type": "message_delta", "delta": ended, "usage": whole["usage"]}
        return named([*self._stop(), last, {"type": "message_stop"}])

    def _begin(self) -> dict[str, Any]:
        self._is_begun = True
        usage = {"input_tokens": self._answered.prompt_tokens, "output_tokens": 0}
        nothing: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        return {"type": "message_start", "message": {**message_head(self._answered), **nothing, "usage": usage}}

    def _goes_on(self, empty: dict[str, Any], delta: dict[str, Any]) -> list[dict[str, Any]]:
        """By a block that is `empty` when it begins, unless one of its type is open."""
        events = []
        if self._open != empty["type"]:
            events = self._stop()
            events.append({"type": "content_block_start", "index": self._blocks, "content_block": empty})
            self._open = empty["type"]
            self._has_said = self._has_said or empty is not _THINKING
        return [*events, {"type": "content_block_delta", "index": self._blocks, "delta": delta}]

    def _stop(self) -> list[dict[str, Any]]:
        if self._open is None:
            return []
        self._open, self._blocks = None, self._blocks + 1
        return [{"type": "content_block_stop", "index": self._blocks - 1}]
