"""How many tokens a text has at most, told from its bytes."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KEEPS = {"Sequence", "ByteLevel", "Split", "Digits", "Punctuation", "WhitespaceSplit"}
"""Pre-tokenizers that cut a text, and add nothing to it."""
_NFC_GROWTH = 3
"""Most bytes of UTF-8 that normalisation to NFC makes of one (the Unicode FAQ on normalisation)."""


@dataclass(frozen=True, slots=True)
class TokenBound:
    """An upper bound of the number of tokens of a text, special tokens of the tokenizer's own included."""

    composes: bool
    """The text is normalised to NFC first."""
    specials: int

    def __call__(self, text: str) -> int:
        if text.isascii():
            return len(text) + self.specials
        grows = self.composes and not unicodedata.is_normalized("NFC", text)
        return len(text.encode(errors="replace")) * (_NFC_GROWTH if grows else 1) + self.specials

    def of_bytes(self, lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """[N]: of any texts of so many bytes of UTF-8, [N]."""
        return lengths.astype(np.int64) * (_NFC_GROWTH if self.composes else 1) + self.specials


def token_bound(tokenizer: Any) -> TokenBound | None:
    """The bound for this tokenizer, for which nothing need be tokenised; None if it is not of a kind whose bound is
    known.

    Known are those of bytes (GPT-2's kind: of Qwen, Llama 3 and most others), and of whole words: each token is of one
    byte at least.
    """
    from tokenizers import models

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.model, models.BPE | models.WordLevel):
        return None
    cutting, normalizing = _parts(backend.pre_tokenizer), _parts(backend.normalizer)
    by_bytes = "ByteLevel" in {part["type"] for part in cutting}
    if by_bytes != isinstance(backend.model, models.BPE) or any(part.get("add_prefix_space") for part in cutting):
        return None
    if {part["type"] for part in cutting} - _KEEPS or {part["type"] for part in normalizing} - {"Sequence", "NFC"}:
        return None
    composes = any(part["type"] == "NFC" for part in normalizing)
    return TokenBound(composes, tokenizer.num_special_tokens_to_add())


def _parts(component: Any) -> list[dict[str, Any]]:
    """The objects with a `type` that a part of a tokenizer is made of."""
    return [] if component is None else list(_typed(json.loads(component.__getstate__())))


def _typed(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("type"), str):
            yield value
        for entry in value.values():
            yield from _typed(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _typed(entry)
