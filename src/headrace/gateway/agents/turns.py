"""Conversations to token ids, for one episode: what a turn adds, and how the policy's words in it are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.experience.text.messages import Message, Tool
from headrace.experience.text.tokens import TextCodec
from headrace.gateway.agents.model_renderer import AnswerReader, ModelRenderer
from headrace.gateway.agents.reading import Reading
from headrace.gateway.agents.reasoning import CLOSE, OPEN, begins_thought, shows_reasoning, template_text
from headrace.gateway.agents.tool_calls import parser_of
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
        self,
        text: TextCodec,
        stop_token_ids: Sequence[int],
        thinking: Literal["keep", "template"],
        tool_parser: str,
        renderer: ModelRenderer | None = None,
    ) -> None:
        """`renderer`: of the model; without one its chat template renders."""
        self._text = text
        self._stops = frozenset(stop_token_ids)
        self._thinking = thinking
        self._splits = renderer is not None or shows_reasoning(text.template)
        self._parser = parser_of(tool_parser, template_text(text.template))
        self._renderer = renderer
        self._reader = renderer if tool_parser == "auto" else None

    def whole(self, messages: list[Message], shown: Shown) -> NDArray[np.int32]:
        """Ids of a conversation that goes on from nothing. Raises ApiError."""
        with _told("messages"):
            return self._whole(messages, shown)

    def _whole(self, messages: list[Message], shown: Shown) -> NDArray[np.int32]:
        if self._renderer is not None:
            return self._renderer.whole(messages, shown.tools, shown.variables)
        return self._text.encode(messages, shown.tools, shown.variables)

    def text(self, prompt: str) -> NDArray[np.int32]:
        """Raises ApiError."""
        with _told("prompt"):
            return self._text.encode(prompt)

    def text_after(self, text: str) -> NDArray[np.int32]:
        """Ids of what a prompt adds to the policy's words. Raises ApiError."""
        with _told("prompt"):
            return self._text.encode_text(text)

    def after(
        self, messages: list[Message], place: int, prompt: NDArray[np.int32], answer: NDArray[np.int32], shown: Shown
    ) -> NDArray[np.int32] | None:
        """Ids of what comes after the policy's turn `messages[place]`, its `answer` to `prompt`, up to its next one.
        None if there is no way on from it: the model's renderer has none, and there is no template. Raises ApiError."""
        with _told("messages"):
            if self._renderer is not None:
                added = self._renderer.after(prompt, answer, messages, place, shown.tools, shown.variables)
                if added is not None or not self._text.template.exists:
                    return added
            last = int(answer[-1])
            return self._text.encode_after(messages, place, last, self._stops, shown.tools, shown.variables)

    def thoughts_in(self, messages: Sequence[Message], shown: Shown) -> frozenset[int]:
        """Places of the messages whose thoughts the policy sees where `messages` are the history. Raises ApiError."""
        thoughts = [place for place, message in enumerate(messages) if message.get("reasoning_content")]
        if self._thinking == "keep" or not thoughts:
            return frozenset(thoughts)
        marked = [
            {**message, "reasoning_content": _THOUGHT.format(place)} if place in thoughts else message
            for place, message in enumerate(messages)
        ]
        with _told("messages"):
            if self._renderer is None:
                rendered = self._text.template.given(shown.variables).render(marked, shown.tools)
            else:
                rendered = self._text.decode(self._whole(marked, shown), keep_special_tokens=True)
        return frozenset(place for place in thoughts if _THOUGHT.format(place) in rendered)

    def reading(self, stop: tuple[str, ...], prompt: NDArray[np.int32], shown: Shown, *, reads_calls: bool) -> Reading:
        """Of answers to `prompt` in a chat: by the model's renderer, if there is one that is to."""
        by = None
        if self._reader is not None:
            by = AnswerReader(self._reader, prompt, self._stops, shown.tools, shown.variables)
        end = self._text.decode(prompt[-_PROMPT_END:], keep_special_tokens=True) if self._splits else ""
        parser = self._parser if reads_calls else None
        thoughts = (OPEN, CLOSE) if self._splits else ()
        text, marks = self._read_with((*stop, *thoughts, *(parser.marks if parser else ())))
        return Reading(
            text,
            self._stops,
            stop,
            splits=self._splits,
            begun=begins_thought(end),
            reads_calls=reads_calls,
            parser=parser,
            tools=shown.tools or (),
            marks=marks,
            by_renderer=by,
        )

    def plain_reading(self, stop: tuple[str, ...]) -> Reading:
        """Of text that goes on."""
        text, marks = self._read_with(stop)
        return Reading(text, self._stops, stop, marks=marks)

    def _read_with(self, looked_for: Sequence[str]) -> tuple[TextCodec, tuple[str, ...]]:
        """What decodes an answer in which these texts are looked for, and the special tokens that are part of them."""
        kept = {
            token: mark
            for token, mark in self._text.special_tokens.items()
            if token not in self._stops and mark.strip() and any(mark in text for text in looked_for)
        }
        return (self._text.keeping(frozenset(kept)), tuple(kept.values())) if kept else (self._text, ())


@contextmanager
def _told(param: str) -> Iterator[None]:
    """What refuses a client's messages or prompt, as an ApiError."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ApiError(str(error), param=param) from error
