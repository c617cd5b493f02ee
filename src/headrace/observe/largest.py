"""The largest of numbers of which some may be NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable


def largest(values: Iterable[float], default: float | None = None) -> float:
    """NaN if any is, wherever it stands: `max` would tell the number that came before it. Raises ValueError of none
    without a `default`."""
    found = list(values)
    if not found and default is not None:
        return default
    return max(found, key=lambda value: (math.isnan(value), value))
