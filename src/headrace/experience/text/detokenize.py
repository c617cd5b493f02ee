"""Token ids to text as they come, never cutting a character that takes several tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_CONTEXT = 6
"""Prompt tokens decoded with the first ones sampled: tokenizers drop the space before a text's first word."""
_BROKEN = "\ufffd"
"""What tokenizers decode an unfinished UTF-8 sequence to."""
_UNFINISHED = 3
"""An unfinished character shows as at most so many of them."""
_LONGEST_BROKEN = 8
"""A longer run is what the model really wrote, but for its end."""


class Detokenizer:
    """`push` and `flush` together give the text of all that was pushed, in pieces of whole characters."""

    def __init__(self, decode: Callable[[list[int]], str], prompt: Sequence[int]) -> None:
        self._decode = decode
        self._window = list(prompt[-_CONTEXT:])
        self._context = len(self._window)
        """How many of the window's first ids only give the others their context."""
        self._shown = decode(self._window)
        """The part of the window's text that was given out, context included."""
        self.is_whole = True
        """Whether nothing is held back."""

    def push(self, token_ids: Sequence[int]) -> str:
        self._window.extend(token_ids)
        text = self._decode(self._window)
        whole = text.rstrip(_BROKEN)
        if len(text) - len(whole) > _LONGEST_BROKEN:
            whole = text[:-_UNFINISHED]
        self.is_whole = whole == text
        return self._show(text, whole)

    def flush(self) -> str:
        """What was held back, though unfinished."""
        text = self._decode(self._window)
        self.is_whole = True
        return self._show(text, text)

    def _show(self, text: str, part: str) -> str:
        piece = part[_common(self._shown, part) :]
        if not piece:
            return ""
        self._shown = part
        if part == text:
            self._window = self._window[self._context :]
            self._context = len(self._window)
            self._shown = self._decode(self._window)
        return piece


def _common(shown: str, text: str) -> int:
    """Length of the common beginning: less than all of `shown` if the prompt ended in half a character."""
    if text.startswith(shown):
        return len(shown)
    return next((place for place, (a, b) in enumerate(zip(shown, text, strict=False)) if a != b), len(text))
