"""Streams of OpenAI's chats and completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.gateway.agents.agent_requests import AgentRequest
from headrace.gateway.agents.answered import Answered, chat_logprobs, openai_calls, text_logprobs
from headrace.gateway.agents.event_stream import Event
from headrace.gateway.agents.so_far import Delta
from headrace.gateway.responses import ChatShape, CompletionShape


class ChatStream:
    """See `EventStream`. The official client wants choices to begin in their order, so all of them begin at once."""

    def __init__(self, asked: AgentRequest, answered: Answered) -> None:
        self._asked, self._answered = asked, answered
        self._envelope = answered.envelope(ChatShape())
        self._is_open = False

    def news(self, deltas: Sequence[Delta]) -> list[Event]:
        """See `EventStream.news`."""
        chunks = [] if self._is_open else [_chunk(index, _OPENING) for index in range(self._asked.n)]
        self._is_open = True
        for delta in deltas:
            parts: list[dict[str, Any]] = [] if delta.thought is None else [{"reasoning_content": delta.thought}]
            if delta.text:
                parts.append({"content": delta.text})
            for place, call in enumerate(openai_calls(delta.calls), start=delta.first_call):
                parts.append({"tool_calls": [{"index": place, **call}]})
            each = [_chunk(delta.index, part) for part in parts]
            if delta.finish_reason is not None:
                each.append({**_chunk(delta.index, {}), "finish_reason": delta.finish_reason})
            each[0]["logprobs"] = chat_logprobs(delta.tokens)
            chunks += each
        return [(None, self._envelope.chunk(chunk)) for chunk in chunks]

    def end(self) -> list[Event]:
        """See `EventStream.end`."""
        return [(None, self._envelope.last_chunk(self._answered.usage))] if self._asked.include_usage else []


class TextStream:
    """See `EventStream`."""

    def __init__(self, asked: AgentRequest, answered: Answered) -> None:
        self._asked, self._answered = asked, answered
        self._envelope = answered.envelope(CompletionShape())

    def news(self, deltas: Sequence[Delta]) -> list[Event]:
        """See `EventStream.news`."""
        return [(None, self._envelope.chunk(_text(delta))) for delta in deltas]

    def end(self) -> list[Event]:
        """See `EventStream.end`."""
        return [(None, self._envelope.last_chunk(self._answered.usage))] if self._asked.include_usage else []


_OPENING = {"role": "assistant", "content": ""}


def _chunk(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _text(delta: Delta) -> dict[str, Any]:
    return {
        "index": delta.index,
        "text": delta.text,
        "logprobs": text_logprobs(delta.tokens, delta.offset),
        "finish_reason": delta.finish_reason,
    }
