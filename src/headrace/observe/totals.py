"""Running totals of processes, added up and subtracted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from headrace.observe.record import Totals

Number = TypeVar("Number", int, float)


def add(parts: Iterable[Totals]) -> Totals:
    """Totals of a run: those of its processes, which ran one after another."""
    total = Totals()
    for part in parts:
        total = _combine(total, part, 1)
    return total


def since(later: Totals, earlier: Totals) -> Totals:
    """What one process did between two of its totals."""
    return _combine(later, earlier, -1)


def _combine(left: Totals, right: Totals, sign: int) -> Totals:
    values: dict[str, Any] = {}
    for field in fields(Totals):
        one, other = getattr(left, field.name), getattr(right, field.name)
        values[field.name] = _combined(one, other, sign) if isinstance(one, Mapping) else one + sign * other
    return Totals(**values)


def _combined(left: Mapping[str, Any], right: Mapping[str, Any], sign: int) -> dict[str, Any]:
    """Numbers are added up or subtracted; of words the later ones stand, at the end."""
    if any(isinstance(value, str) for value in (*left.values(), *right.values())):
        before, after = (left, right) if sign > 0 else (right, left)
        return {name: words for name, words in before.items() if name not in after} | dict(after)
    return _by_name(left, right, sign)


def _by_name(left: Mapping[str, Number], right: Mapping[str, Number], sign: int) -> dict[str, Number]:
    return {name: left.get(name, 0) + sign * right.get(name, 0) for name in (*left, *right)}
