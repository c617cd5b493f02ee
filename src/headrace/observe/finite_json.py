"""JSON that every reader takes: it has no number that is not finite."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def finite_json(values: Any, indent: int | None = None) -> str:
    """With null for NaN and the infinities."""
    return json.dumps(_finite(values), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value
