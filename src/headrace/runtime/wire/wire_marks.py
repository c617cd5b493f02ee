"""What both sides of the wire codec know: see `wire_format.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

LARGE = 1 << 10
"""Bytes from which on a buffer lies beside the envelope."""
MOST_DEPTH = 64
MANY, MOST_MANY = 8, 1 << 16
"""Values in a list, from which on and up to which they go field by field. They differ in one at least: so each takes
bytes, and no message becomes more than it has."""
MOST_INT_BYTES = 1 << 10

_INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")
DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("bool", *_INTS, *_FLOATS)}
SCALARS = frozenset({type(None), bool, float, str})
READ = SCALARS | {int, bytes}
"""What msgpack gives as it was."""

Where = str | tuple[Any, str, Any]
"""A place in a value: that of what it is in, and how to say which place there. Put into words for messages alone."""


def is_words(value: Any) -> bool:
    """Names of columns, as a rule."""
    return type(value) is tuple and all(type(each) is str for each in value)


def said(where: Where) -> str:
    """In words, of a bounded length."""
    parts: list[str] = []
    while not isinstance(where, str):
        where, words, which = where
        parts.append(words % (which,))
    whole = "".join([where, *reversed(parts)])
    return whole if len(whole) <= 160 else f"{whole[:60]} … {whole[-90:]}"
