"""What an agent's request was answered with: the JSON of OpenAI's chats and completions, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.experience.text.messages import Message
from headrace.gateway.agents.token_tree import Node
from headrace.gateway.responses import ChatShape, CompletionShape, Envelope, usage


@dataclass(frozen=True, slots=True)
class Choice:
    node: Node
    message: Message
    """`content`, and perhaps `reasoning_content` and `tool_calls`, whose arguments are objects."""
    finish_reason: str
    """`stop`, `length` or `tool_calls`."""
    token_texts: tuple[str, ...] = ()
    """Where log-probs were asked for."""
    stopped_by: str | None = None
    """The text of the client's that ended it."""


@dataclass(frozen=True, slots=True)
class Answered:
    """To one request."""

    number: int
    created: int
    """Seconds since the epoch."""
    model: str
    prompt_tokens: int
    choices: list[Choice] = field(default_factory=list)

    @property
    def usage(self) -> dict[str, int]:
        return usage(self.prompt_tokens, sum(len(choice.node.tokens) for choice in self.choices))

    def delivered(self) -> None:
        """The agent has it: it may be trained."""
        for choice in self.choices:
            choice.node.delivered = True


def whole_chat(answered: Answered) -> dict[str, Any]:
    choices = [
        {
            "index": index,
            "message": _message(choice.message),
            "logprobs": _chat_logprobs(choice),
            "finish_reason": choice.finish_reason,
        }
        for index, choice in enumerate(answered.choices)
    ]
    return _envelope(answered, ChatShape()).whole(choices, answered.usage)


def whole_text(answered: Answered) -> dict[str, Any]:
    choices = [_text_choice(index, choice) for index, choice in enumerate(answered.choices)]
    return _envelope(answered, CompletionShape()).whole(choices, answered.usage)


def chat_events(answered: Answered, *, include_usage: bool) -> list[dict[str, Any]]:
    """The chunks of a stream."""
    envelope = _envelope(answered, ChatShape())
    events = []
    for index, choice in enumerate(answered.choices):
        for delta, logprobs in _deltas(choice):
            chunk = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
            events.append(envelope.chunk(chunk))
        last = {"index": index, "delta": {}, "logprobs": None, "finish_reason": choice.finish_reason}
        events.append(envelope.chunk(last))
    return events + ([envelope.last_chunk(answered.usage)] if include_usage else [])


def text_events(answered: Answered, *, include_usage: bool) -> list[dict[str, Any]]:
    """The chunks of a stream."""
    envelope = _envelope(answered, CompletionShape())
    events = [envelope.chunk(_text_choice(index, choice)) for index, choice in enumerate(answered.choices)]
    return events + ([envelope.last_chunk(answered.usage)] if include_usage else [])


def _envelope(answered: Answered, shape: ChatShape | CompletionShape) -> Envelope:
    return Envelope(shape, answered.number, answered.created, answered.model)


def _message(message: Message) -> dict[str, Any]:
    """As OpenAI has it: content null beside calls, arguments as text."""
    calls = _calls(message)
    content = message["content"] or (None if calls else "")
    return {**message, "content": content, **({"tool_calls": calls} if calls else {})}


def _calls(message: Message) -> list[dict[str, Any]]:
    return [
        {
            "id": call["id"],
            "type": "function",
            "function": {
                "name": call["function"]["name"],
                "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
            },
        }
        for call in message.get("tool_calls", ())
    ]


def _deltas(choice: Choice) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    message = choice.message
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if message.get("reasoning_content"):
        deltas.append({"reasoning_content": message["reasoning_content"]})
    if message["content"]:
        deltas.append({"content": message["content"]})
    calls: Sequence[dict[str, Any]] = _calls(message)
    deltas += [{"tool_calls": [{"index": place, **call}]} for place, call in enumerate(calls)]
    logprobs = _chat_logprobs(choice)
    return [(delta, logprobs if place == 0 else None) for place, delta in enumerate(deltas)]


def _text_choice(index: int, choice: Choice) -> dict[str, Any]:
    return {
        "index": index,
        "text": choice.message["content"],
        "logprobs": _text_logprobs(choice),
        "finish_reason": choice.finish_reason,
    }


def _logprobs(choice: Choice) -> list[float]:
    assert choice.node.completion is not None
    return [float(value) for value in choice.node.completion.logprobs.tolist()]


def _chat_logprobs(choice: Choice) -> dict[str, Any] | None:
    if not choice.token_texts:
        return None
    pairs = zip(choice.token_texts, _logprobs(choice), strict=True)
    return {
        "content": [
            {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []} for text, value in pairs
        ]
    }


def _text_logprobs(choice: Choice) -> dict[str, Any] | None:
    if not choice.token_texts:
        return None
    offsets = [0]
    for text in choice.token_texts[:-1]:
        offsets.append(offsets[-1] + len(text))
    return {
        "tokens": list(choice.token_texts),
        "token_logprobs": _logprobs(choice),
        "top_logprobs": None,
        "text_offset": offsets,
    }
