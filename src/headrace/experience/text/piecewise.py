"""The text of tokens as they come: never more than the beginning of what all of them are decoded to."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.experience.text.detokenize import Detokenizer
from headrace.experience.text.tokens import TextCodec


class Piecewise:
    """Put together, the pieces are the beginning of `codec.decode` of all tokens."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._detokenizer = Detokenizer(codec.decode, [])
        self._held: list[int] = []
        """A run of bytes that may go on: all of it is a broken character each if any of it is."""

    def push(self, token_ids: Sequence[int]) -> str:
        """What is certain, and was not given yet; nothing, whatever comes, where decoding cleans up."""
        if self._codec.cleans_up:
            return ""
        ids = [*self._held, *token_ids]
        end = len(ids)
        while end and self._is_of_run(ids[end - 1]):
            end -= 1
        self._held = ids[end:]
        return self._detokenizer.push(ids[:end]) if end else ""

    def flush(self) -> str:
        """What was held back, when no more comes; not where decoding cleans up."""
        held, self._held = self._held, []
        return self._detokenizer.push(held) + self._detokenizer.flush()

    @property
    def is_whole(self) -> bool:
        """Whether nothing is held back."""
        return not self._held and self._detokenizer.is_whole

    def _is_of_run(self, token: int) -> bool:
        """Whether it is a byte, or may stand unseen between two."""
        known = self._codec.byte_ids
        return bool(known) and (token in known or not self._codec.decode([token]))
