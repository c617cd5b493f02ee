"""JSON that every client and template can read."""

from __future__ import annotations

import json
from typing import Any

_DEEPEST = 64
"""Objects and lists within each other: far more than a schema has, and far fewer than Python calls can be."""


def check_plain(value: Any) -> None:
    """Raises ValueError for what is nested too deeply, a number that is not finite, and text that is no Unicode."""
    level = [value]
    for _ in range(_DEEPEST + 1):
        level = [inner for each in level for inner in _within(each)]
        if not level:
            break
    else:
        raise ValueError(f"objects and lists are nested more than {_DEEPEST} deep")
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"a text has {error.object[error.start]!r}, half of a surrogate pair, which is no character; leave it out"
        ) from error


def _within(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
