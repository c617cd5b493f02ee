"""The JSON of OpenAI's answers: a whole one, and the chunks of a streamed one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.gateway.choice_text import TextDelta, TokenText


class Shape(Protocol):
    """How one endpoint words a choice."""

    id_prefix: str
    object_whole: str
    object_chunk: str

    def whole(self, index: int, delta: TextDelta, logprobs: bool) -> dict[str, Any]:
        """A finished choice."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """What a choice begins with when streamed, if anything."""

    def chunk(self, index: int, delta: TextDelta, logprobs: bool) -> dict[str, Any]:
        """What is new in a choice."""


class CompletionShape:
    id_prefix = "cmpl"
    object_whole = object_chunk = "text_completion"

    def whole(self, index: int, delta: TextDelta, logprobs: bool) -> dict[str, Any]:
        return {
            "index": index,
            "text": delta.text,
            "logprobs": _completion_logprobs(delta.tokens) if logprobs else None,
            "finish_reason": delta.finish_reason,
        }

    def opening(self, index: int) -> None:
        return None

    def chunk(self, index: int, delta: TextDelta, logprobs: bool) -> dict[str, Any]:
        return self.whole(index, delta, logprobs)


class ChatShape:
    id_prefix = "chatcmpl"
    object_whole = "chat.completion"
    object_chunk = "chat.completion.chunk"

    def whole(self, index: int, delta: TextDelta, logprobs: bool) -> dict[str, Any]:
        return self._choice(index, "message", {"role": "assistant", "content": delta.text}, delta, logprobs)

    def opening(self, index: int) -> dict[str, Any]:
        return {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }

    def chunk(self, index: int, delta: TextDelta, logprobs: bool) -> dict[str, Any]:
        return self._choice(index, "delta", {"content": delta.text} if delta.text else {}, delta, logprobs)

    def _choice(
        self, index: int, key: str, message: dict[str, Any], delta: TextDelta, logprobs: bool
    ) -> dict[str, Any]:
        return {
            "index": index,
            key: message,
            "logprobs": {"content": [_chat_logprob(token) for token in delta.tokens]} if logprobs else None,
            "finish_reason": delta.finish_reason,
        }


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every answer to one request has in common."""

    shape: Shape
    number: int
    created: int
    """Seconds since the epoch."""
    model: str

    def whole(self, choices: Sequence[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        return {**self._head(self.shape.object_whole), "choices": list(choices), "usage": usage}

    def chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {**self._head(self.shape.object_chunk), "choices": [choice]}

    def last_chunk(self, usage: dict[str, int]) -> dict[str, Any]:
        return {**self._head(self.shape.object_chunk), "choices": [], "usage": usage}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"{self.shape.id_prefix}-{self.number}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _completion_logprobs(tokens: Sequence[TokenText]) -> dict[str, Any]:
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": None,
        "text_offset": [token.offset for token in tokens],
    }


def _chat_logprob(token: TokenText) -> dict[str, Any]:
    return {
        "token": token.text,
        "logprob": token.logprob,
        "bytes": list(token.text.encode()),
        "top_logprobs": [],
    }
