"""What Python's reader of JSON takes, and JSON has no form for."""

from __future__ import annotations

import math
from typing import NoReturn

_SHOWN = 20
"""Characters of a number."""


def refuse_constant(name: str) -> NoReturn:
    """For `parse_constant`: of NaN and infinities. Raises ValueError."""
    raise ValueError(f"{name} is no JSON value")


def finite(text: str) -> float:
    """For `parse_float`. Raises ValueError for what would be read as an infinity."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:_SHOWN]} is larger than any number")
    return number
