"""What is certain of an answer, and what of that is news to whoever reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.experience.text.messages import Message
from headrace.experience.text.token_texts import ShownToken


@dataclass(frozen=True, slots=True)
class SoFar:
    """Of one choice. It only grows."""

    message: Message
    """`content`, `reasoning_content` and `tool_calls`, each the beginning of what it will be."""
    tokens: Sequence[ShownToken] = ()
    """Where log-probs were asked for."""
    finish_reason: str | None = None
    """None: it goes on."""


@dataclass(frozen=True, slots=True)
class Delta:
    """News of one choice."""

    index: int
    thought: str | None
    """Empty: there is one, and nothing in it."""
    text: str
    calls: Sequence[dict[str, Any]]
    first_call: int
    """The place of the first of `calls` in its message."""
    tokens: Sequence[ShownToken]
    """Up to here, those that no delta had; where log-probs were asked for."""
    offset: int
    """Characters of the tokens before."""
    finish_reason: str | None


class Told:
    """How much of one choice was told."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._has_thought = self._has_ended = False
        self._thought = self._text = self._calls = self._tokens = self._characters = 0

    def news(self, so_far: SoFar) -> Delta | None:
        """What has come since, if anything has."""
        message, ended = so_far.message, so_far.finish_reason is not None
        thought = self._more_thought(message.get("reasoning_content"), ended)
        text, calls = message["content"][self._text :], message.get("tool_calls", ())[self._calls :]
        if not (thought or text or calls or (ended and not self._has_ended)):
            return None
        tokens = so_far.tokens[self._tokens :]
        delta = Delta(self._index, thought, text, calls, self._calls, tokens, self._characters, so_far.finish_reason)
        self._text += len(text)
        self._calls += len(calls)
        self._tokens += len(tokens)
        self._characters += sum(each.length for each in tokens)
        self._has_ended = ended
        return delta

    def _more_thought(self, thought: str | None, ended: bool) -> str | None:
        more = (thought or "")[self._thought :]
        if thought is None or not (more or (ended and not self._has_thought)):
            return None
        self._has_thought = True
        self._thought += len(more)
        return more
