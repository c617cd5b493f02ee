"""Sections in sections as dotted keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Scalar = str | float | int | bool | None


def flat(values: Mapping[str, Any], separator: str = ".") -> dict[str, Scalar]:
    """`{"trainer": {"batches": 6}}` as `{"trainer.batches": 6}`; a list is its JSON."""
    return dict(_flat(values, "", separator))


def _flat(values: Mapping[str, Any], prefix: str, separator: str) -> Iterator[tuple[str, Scalar]]:
    for name, value in values.items():
        key = f"{prefix}{separator}{name}" if prefix else str(name)
        if isinstance(value, Mapping):
            yield from _flat(value, key, separator)
        elif isinstance(value, list | tuple):
            yield key, json.dumps(value, ensure_ascii=False, default=str)
        else:
            yield key, value
