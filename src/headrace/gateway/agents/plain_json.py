"""JSON that every client and template can read."""

from __future__ import annotations

import json
from typing import Any

_DEEPEST = 64
"""Objects and lists within each other: far more than a schema has, and far fewer than Python calls can be."""


_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False)
_HALVES = (b"\\ud", b"\\uD", b"\xed")
"""What half of a surrogate pair begins with, escaped and as bytes."""


def check_plain(value: Any) -> None:
    """Raises ValueError for what is nested too deeply, a number that is not finite, and text that is no Unicode."""
    try:
        text = _ENCODER.encode(value)
        is_deep = text.count("{") + text.count("[") > _DEEPEST and _is_deep(value)
        text.encode()
    except RecursionError:
        is_deep = True
    except UnicodeEncodeError as error:
        raise ValueError(
            f"a text has {error.object[error.start]!r}, half of a surrogate pair, which is no character; leave it out"
        ) from error
    if is_deep:
        raise ValueError(f"objects and lists are nested more than {_DEEPEST} deep")


def is_surely_plain(body: bytes) -> bool:
    """Whether nothing can be in this JSON that `check_plain` refuses, numbers aside: found without reading it."""
    return not any(half in body for half in _HALVES) and body.count(b"{") + body.count(b"[") <= _DEEPEST


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST + 1):
        level = [inner for each in level for inner in _within(each)]
        if not level:
            return False
    return True


def _within(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
