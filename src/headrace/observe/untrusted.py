"""Untrusted text, on a terminal or in a picture: what would steer it is shown instead."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

_LINE_BREAKS = "\n\t"
_PICTURES = 0x2400
"""Unicode's pictures of the first 32 control characters."""
_DELETE = 0x7F
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Categories of what has no glyph: control and formatting (as bidirectional overrides), surrogates, unassigned."""
_JOINERS = "\u200c\u200d"
"""Which scripts and emoji need."""


def visible(text: str) -> str:
    """`text` with every character that has no glyph replaced by one that names it; line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(each if each in _LINE_BREAKS or _is_harmless(each) else _named(each) for each in text)


def visible_in(value: Any) -> Any:
    """A value of JSON with `visible` done to all text in it, names included."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible_in(name): visible_in(each) for name, each in value.items()}
    return [visible_in(each) for each in value] if isinstance(value, list | tuple) else value


def visible_line(text: str) -> str:
    """`visible`, and line breaks and tabs are replaced too."""
    return "".join(each if _is_harmless(each) else _named(each) for each in text)


def _is_harmless(character: str) -> bool:
    return " " <= character <= "~" or character in _JOINERS or unicodedata.category(character) not in _UNSEEN


def _named(character: str) -> str:
    code = ord(character)
    if code < ord(" "):
        return chr(_PICTURES + code)
    return "\u2421" if code == _DELETE else f"<U+{code:04X}>"
