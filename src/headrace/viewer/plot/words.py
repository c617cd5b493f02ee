"""Text in drawings: names that others chose are shown, whatever is in them, and fit."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

_ELLIPSIS = "…"
_NARROW, _WIDE = frozenset("iljtfrI.,:;|!'()[]/ -"), frozenset("mwMW@%…")


def width_of(text: str, size: float) -> float:
    """Pixels that the text takes at most in a common sans-serif; DejaVu Sans, a wide one, is what it was fitted to."""
    return size * sum(map(_share, text))


def cut(text: str, size: float, width: float) -> str:
    """The text, or its beginning and its end, so that it fits."""
    if width_of(text, size) <= width:
        return text
    kept = len(text)
    while kept > 2:
        kept -= 1
        left = (kept + 1) // 2
        shorter = text[:left] + _ELLIPSIS + text[len(text) - (kept - left) :]
        if width_of(shorter, size) <= width:
            return shorter
    return _ELLIPSIS


def _share(letter: str) -> float:
    if letter in _NARROW:
        return 0.42
    if letter in _WIDE or unicodedata.east_asian_width(letter) in "WF":
        return 1.03
    return 0.78 if letter.isupper() or ord(letter) > 0x24F else 0.65


def distinct(paths: Sequence[Path]) -> tuple[str, ...]:
    """The last part of each path, or as many of its last parts as tell it from the others, which are resolved."""
    most = max(len(path.parts) for path in paths)
    names = [path.name or str(path) for path in paths]
    for count in range(2, most + 1):
        taken = Counter(names)
        names = [
            "/".join(path.parts[-count:]) if taken[name] > 1 else name for path, name in zip(paths, names, strict=True)
        ]
    return tuple(names)
