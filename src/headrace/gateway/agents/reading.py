"""How the policy's answers to one request are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engines.protocol import FinishReason
from headrace.experience.text.messages import Message, Tool
from headrace.experience.text.token_texts import ShownToken, TokenTexts
from headrace.experience.text.tokens import TextCodec
from headrace.gateway.agents.call_ids import call_id
from headrace.gateway.agents.left_out import left_out
from headrace.gateway.agents.model_renderer import AnswerReader, UnreadAnswer
from headrace.gateway.agents.parsed_text import ParsedText, ToolCall
from headrace.gateway.agents.reasoning import split_reasoning
from headrace.gateway.agents.tool_calls import Parser, parse_tool_calls


@dataclass(frozen=True, slots=True)
class Said:
    """An answer, as it was read."""

    text: str
    """Without the token that closes the turn, up to a text of the client's that stops it."""
    stopped_by: str | None
    """That text, if one does."""
    beyond: str = ""
    """What was sampled from that text on."""
    read: ParsedText | None = None
    """What the model's renderer read in it, if it does."""
    is_unread: bool = False
    """Whether the renderer raised something instead, so that all of it is text."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Of whole answers; of those that are still being sampled see `GrowingAnswer`."""

    text: TextCodec
    closing: frozenset[int]
    """Tokens that end a turn."""
    stop: tuple[str, ...]
    """Texts of the client's that end an answer."""
    splits: bool = False
    """Whether thoughts are told from what is said."""
    begun: bool = False
    """Whether the prompt has begun a thought."""
    reads_calls: bool = False
    parser: Parser | None = None
    """Of calls, where they are read."""
    tools: Sequence[Tool] = ()
    """That the request has."""
    marks: tuple[str, ...] = ()
    """Of special tokens: what `text` decodes for the stops, thoughts and calls, and is no part of what is said."""
    by_renderer: AnswerReader | None = None
    """How the model's renderer reads an answer, if one is to."""

    def said(self, answer: NDArray[np.int32], finish: FinishReason) -> Said:
        """What the tokens of an answer say."""
        ends = len(answer) and finish is FinishReason.STOP and int(answer[-1]) in self.closing
        text = self.text.decode(answer[:-1] if ends else answer)
        cuts = [(place, each) for each in self.stop if (place := text.find(each)) >= 0]
        if cuts:
            place, by = min(cuts)
            return Said(text[:place], by, text[place:])
        if self.by_renderer is None:
            return Said(text, None)
        try:
            return Said(text, None, read=self.by_renderer.read(answer) or self._read(text, None))
        except UnreadAnswer:
            return Said(text, None, read=self._read(text, None), is_unread=True)

    def message(self, said: Said, number: int) -> Message:
        """What the policy said, as a message; `number`: of the answer in its session."""
        read = said.read
        if read is None or (read.calls and not self.reads_calls):
            read = self._read(said.text, self.parser)
        message: Message = {"role": "assistant", "content": read.text}
        if read.thought is not None:
            message["reasoning_content"] = read.thought
        if read.calls:
            message["tool_calls"] = _as_calls(read.calls, number)
        return message

    def _read(self, text: str, parser: Parser | None) -> ParsedText:
        thought, answer = split_reasoning(text, begun=self.begun) if self.splits else (None, text)
        parsed = parse_tool_calls(answer, parser, self.tools)
        thought = None if thought is None else left_out(thought, self.marks)
        return ParsedText(left_out(parsed.text, self.marks), parsed.calls, thought)

    def shown(self, tokens: NDArray[np.int32], logprobs: NDArray[np.float32]) -> tuple[ShownToken, ...]:
        """All tokens of an answer, as log-probs show them."""
        texts = TokenTexts(self.text)
        return (*texts.push(tokens.tolist(), logprobs.tolist()), *texts.flush())


def _as_calls(calls: Sequence[ToolCall], answer: int) -> list[dict[str, Any]]:
    """As a message has them, by the ids that the policy wrote, or made ones."""
    return [
        {
            "id": call.id or call_id(answer, place),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for place, call in enumerate(calls)
    ]
