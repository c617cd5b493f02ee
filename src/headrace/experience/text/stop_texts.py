"""Ends a completion at a text: exactly, however its tokens come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.experience.text.detokenize import Detokenizer
from headrace.experience.text.stops import StopStrings


class StopTexts:
    """Watches one turn. It is looked at token by token, so what it finds depends on neither chunks nor interruptions,
    also where completions one after another make the turn."""

    def __init__(self, decode: Callable[[NDArray[np.int32]], str], stops: Sequence[str]) -> None:
        """`decode`: token ids to text, special tokens included. The turn is decoded by itself, as by all who read it:
        some tokenizers leave out the space before a text's first word."""
        self._detokenizer = Detokenizer(lambda ids: decode(np.asarray(ids, dtype=np.int32)), [])
        self._stops = StopStrings(stops)
        self._tokens = 0

    def begin(self, tokens: NDArray[np.int32]) -> bool:
        """Before all else: `tokens`, of earlier completions, begin the turn, and `push` counts what comes behind them.
        Whether they hold a stop text; then nothing may be pushed."""
        ended = self.push(tokens) is not None
        self._tokens = 0
        return ended

    def push(self, tokens: NDArray[np.int32]) -> int | None:
        """How many tokens the completion has up to the one that completes a stop text; None if none does yet. Once it
        has, no more may be pushed."""
        for token in tokens.tolist():
            self._tokens += 1
            if self._stops.push(self._detokenizer.push([token]))[1]:
                return self._tokens
        return None
