"""The text of one choice, put together from the tokens that an engine samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headrace.engines.protocol import FinishReason, TokenChunk
from headrace.experience.text.detokenize import Detokenizer
from headrace.experience.text.stops import StopStrings
from headrace.experience.text.tokens import HFTokenizer


@dataclass(frozen=True, slots=True)
class TokenText:
    """One sampled token. Joined, the texts of a choice's tokens are its text, and then the stop token."""

    text: str
    """What the token adds to the text: nothing if it only begins a character."""
    logprob: float
    offset: int
    """Where in the choice's text it begins."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What is new in one choice."""

    text: str
    tokens: tuple[TokenText, ...]
    """Of the text given out so far; empty unless log-probs were asked for."""
    sampled: int
    """New tokens, stop token included."""
    finish_reason: str | None
    """`stop`, `length` or `abort`; set on the last."""


class TextStream:
    """Tokens in, text out. The stop token, and a stop string with what follows it, are left out of the text."""

    def __init__(
        self, tokenizer: HFTokenizer, prompt: NDArray[np.int32], stop: Sequence[str], *, logprobs: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(
            lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)), prompt.tolist()
        )
        self._stops = StopStrings(stop)
        self._logprobs = logprobs
        self._one_by_one = logprobs or bool(stop)
        self._decoded = 0
        """Characters that came out of the detokenizer."""
        self._given = 0
        """Characters that were given out."""
        self._waiting: deque[TokenText] = deque()
        """Tokens whose text was not given out yet."""

    def push(self, chunk: TokenChunk) -> TextDelta:
        """Once a delta has a finish reason, no more may be pushed."""
        ids: list[int] = chunk.tokens.tolist()
        shown = ids[:-1] if chunk.finish_reason is FinishReason.STOP else ids
        groups = [[token] for token in shown] if self._one_by_one else [shown] if shown else []
        given: list[str] = []
        for place, group in enumerate(groups):
            passed, stopped = self._take(self._detokenizer.push(group), chunk.logprobs[place])
            given.append(passed)
            if stopped:
                return self._delta(given, place + 1, FinishReason.STOP, cut=True)
        if chunk.finish_reason is None:
            return self._delta(given, len(ids), None)
        passed, stopped = self._pass_on(self._flushed())
        given.append(passed)
        if not stopped:
            given.append(self._stops.flush())
            if self._logprobs and len(shown) < len(ids):
                text = str(self._tokenizer.decode(ids[-1:], skip_special_tokens=False))
                self._waiting.append(TokenText(text, float(chunk.logprobs[-1]), self._decoded))
        return self._delta(given, len(ids), chunk.finish_reason, cut=stopped)

    def _take(self, piece: str, logprob: np.float32) -> tuple[str, bool]:
        if self._logprobs:
            self._waiting.append(TokenText(piece, float(logprob), self._decoded))
        return self._pass_on(piece)

    def _flushed(self) -> str:
        """What was held back of the last character, which is its last token's."""
        piece = self._detokenizer.flush()
        if piece and self._waiting:
            last = self._waiting.pop()
            self._waiting.append(replace(last, text=last.text + piece))
        return piece

    def _pass_on(self, piece: str) -> tuple[str, bool]:
        self._decoded += len(piece)
        return self._stops.push(piece)

    def _delta(self, given: list[str], sampled: int, finish: FinishReason | None, cut: bool = False) -> TextDelta:
        text = "".join(given)
        self._given += len(text)
        everything = finish is not None and not cut
        tokens = []
        while self._waiting and (everything or self._waiting[0].offset < self._given):
            tokens.append(self._waiting.popleft())
        return TextDelta(text, tuple(tokens), sampled, None if finish is None else finish.value)
