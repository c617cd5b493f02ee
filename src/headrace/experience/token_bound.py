"""How many tokens a text has at most, told from its bytes."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

_KEEPS = {"Sequence", "ByteLevel", "Split", "Digits", "Punctuation"}
"""Pre-tokenizers that cut a text, and add nothing to it."""
_NFC_GROWTH = 3
"""Most bytes of UTF-8 that normalisation to NFC makes of one (the Unicode FAQ on normalisation)."""


def token_bound(tokenizer: Any) -> Callable[[str], int] | None:
    """A function that gives an upper bound of the number of tokens of a text, special tokens of the tokenizer's own
    included, without tokenising it; None if the tokenizer is not of a kind whose bound is known.

    Known are those of bytes (GPT-2's kind: of Qwen, Llama 3 and most others): each token is of one byte at least.
    """
    from tokenizers import models

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.model, models.BPE):
        return None
    cutting, normalizing = _parts(backend.pre_tokenizer), _parts(backend.normalizer)
    if "ByteLevel" not in {part["type"] for part in cutting} or any(part.get("add_prefix_space") for part in cutting):
        return None
    if {part["type"] for part in cutting} - _KEEPS or {part["type"] for part in normalizing} - {"Sequence", "NFC"}:
        return None
    composes = any(part["type"] == "NFC" for part in normalizing)
    specials = tokenizer.num_special_tokens_to_add()

    def most(text: str) -> int:
        if text.isascii():
            return len(text) + specials
        grows = composes and not unicodedata.is_normalized("NFC", text)
        return len(text.encode(errors="replace")) * (_NFC_GROWTH if grows else 1) + specials

    return most


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
