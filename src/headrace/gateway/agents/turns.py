"""Conversations to token ids and back, for one episode: what a turn adds, and what the policy said in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.engines.protocol import FinishReason
from headrace.experience.text.messages import Message, Tool
from headrace.experience.text.tokens import TextCodec
from headrace.gateway.agents.reasoning import shows_reasoning, split_reasoning, template_text
from headrace.gateway.agents.tool_calls import parse_tool_calls, parser_of
from headrace.gateway.errors import ApiError

_THOUGHT = "\x02thought {}\x03"
_PROMPT_END = 8
"""Tokens of a prompt's end, in which it may begin a thought."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What is before the messages of a conversation."""

    tools: Sequence[Tool] | None
    variables: Mapping[str, Any]
    """Of the chat template."""


class Turns:
    """One tokenizer and template, with what reads the policy's words."""

    def __init__(
        self, text: TextCodec, stop_token_ids: Sequence[int], thinking: Literal["keep", "template"], tool_parser: str
    ) -> None:
        self._text = text
        self._stops = frozenset(stop_token_ids)
        self._thinking = thinking
        self._splits = shows_reasoning(text.template)
        self._parser = parser_of(tool_parser, template_text(text.template))

    def whole(self, messages: list[Message], shown: Shown) -> NDArray[np.int32]:
        """Ids of a conversation that goes on from nothing. Raises ApiError."""
        try:
            return self._text.encode(messages, shown.tools, shown.variables)
        except (ValueError, TypeError) as error:
            raise ApiError(str(error), param="messages") from error

    def text(self, prompt: str) -> NDArray[np.int32]:
        """Raises ApiError."""
        try:
            return self._text.encode(prompt)
        except (ValueError, TypeError) as error:
            raise ApiError(str(error), param="prompt") from error

    def after(self, messages: list[Message], place: int, last_token: int, shown: Shown) -> NDArray[np.int32]:
        """Ids of what comes after the policy's turn `messages[place]`, up to its next one. Raises ApiError."""
        try:
            return self._text.encode_after(messages, place, last_token, self._stops, shown.tools, shown.variables)
        except (ValueError, TypeError) as error:
            raise ApiError(str(error), param="messages") from error

    def thoughts_in(self, messages: Sequence[Message], shown: Shown) -> frozenset[int]:
        """Places of the messages whose thoughts the policy sees where `messages` are the history."""
        thoughts = [place for place, message in enumerate(messages) if message.get("reasoning_content")]
        if self._thinking == "keep" or not thoughts:
            return frozenset(thoughts)
        marked = [
            {**message, "reasoning_content": _THOUGHT.format(place)} if place in thoughts else message
            for place, message in enumerate(messages)
        ]
        rendered = self._text.template.given(shown.variables).render(marked, shown.tools)
        return frozenset(place for place in thoughts if _THOUGHT.format(place) in rendered)

    def said(self, tokens: NDArray[np.int32], finish: FinishReason, stop: Sequence[str]) -> tuple[str, str | None]:
        """The text of an answer, without the token that closes the turn, up to a text of the client's that stops it;
        and that, if one does."""
        ends = len(tokens) and finish is FinishReason.STOP and int(tokens[-1]) in self._stops
        text = self._text.decode(tokens[:-1] if ends else tokens)
        cuts = [(place, each) for each in stop if (place := text.find(each)) >= 0]
        if not cuts:
            return text, None
        place, by = min(cuts)
        return text[:place], by

    def message(self, said: str, prompt: NDArray[np.int32], *, reads_calls: bool, ids: str) -> Message:
        """What the policy said, as a message; `ids`: the beginning of those of its calls."""
        thought, answer = None, said
        if self._splits:
            end = self._text.decode(prompt[-_PROMPT_END:], keep_special_tokens=True)
            thought, answer = split_reasoning(said, end)
        parsed = parse_tool_calls(answer, self._parser if reads_calls else None)
        message: Message = {"role": "assistant", "content": parsed.text}
        if thought is not None:
            message["reasoning_content"] = thought
        if parsed.calls:
            functions = [{"name": call.name, "arguments": call.arguments} for call in parsed.calls]
            message["tool_calls"] = [
                {"id": f"{ids}_{place}", "type": "function", "function": function}
                for place, function in enumerate(functions)
            ]
        return message

    def token_texts(self, tokens: NDArray[np.int32]) -> tuple[str, ...]:
        """Each by itself."""
        return tuple(self._text.decode([token], keep_special_tokens=True) for token in tokens.tolist())
