"""Axes: round numbers that cover the values, where they stand, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_SMALLEST_SHARE = 1e-6
"""A span that is a smaller share of the values than this is none: labels would need more digits than there is room."""
_SMALLEST = 1e-200
_MOST_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Scale:
    low: float
    high: float
    step: float
    """Between two ticks; multiples of it."""

    def place(self, value: float) -> float:
        """From 0 at `low` to 1 at `high`."""
        return (value - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> tuple[float, ...]:
        """Multiples of `step` from `low` to `high`."""
        first, last = math.ceil(self.low / self.step - 1e-9), math.floor(self.high / self.step + 1e-9)
        return tuple(min(max(number * self.step, self.low), self.high) for number in range(first, last + 1))

    def label(self, value: float) -> str:
        """As short as the step allows: 0.25, 1.5k, 2e-5."""
        largest = max(abs(self.low), abs(self.high))
        if value == 0 or abs(value) < self.step / 2:
            return "0"
        for unit, name in ((1e12, None), (1e9, "G"), (1e6, "M"), (1e4, "k")):
            if largest >= unit:
                return _scientific(value, self.step) if name is None else _plain(value, self.step, name)
        return _scientific(value, self.step) if self.step < 1e-3 else f"{value:.{_decimals(self.step)}f}"


def scale_of(values: Iterable[float], *, from_zero: bool = False, steps: int = 4) -> Scale:
    """Round ends around the values, about `steps` steps apart. `values`: not empty, none beyond 1e150."""
    seen = list(values)
    low, high = min(seen), max(seen)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    size = max(abs(low), abs(high))
    if size < _SMALLEST:
        low, high = (-1.0 if low < 0 else 0.0), 1.0
    elif high - low <= _SMALLEST_SHARE * size:
        low, high = low - 0.1 * size, high + 0.1 * size
    step = nice((high - low) / steps)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Scale(min(first * step, low), max(last * step, high), step)


def along(last: float, *, whole: bool, steps: int = 5) -> Scale:
    """From 0 to `last`, which is positive, with ticks between. `whole`: at whole numbers."""
    step = nice(last / steps)
    return Scale(0.0, last, max(math.ceil(step), 1) if whole else step)


def nice(step: float) -> float:
    """The least of 1, 2, 2.5, 5 times a power of ten that is no smaller."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= step * (1 - 1e-9))


def _decimals(step: float) -> int:
    """Digits after the point with which a multiple of `step` is written whole."""
    scaled = (step * 10**digits for digits in range(_MOST_DIGITS))
    return next((digits for digits, one in enumerate(scaled) if abs(one - round(one)) < 1e-6), _MOST_DIGITS)


def _plain(value: float, step: float, name: str) -> str:
    unit = {"k": 1e3, "M": 1e6, "G": 1e9}[name]
    return f"{value / unit:.{_decimals(step / unit)}f}{name}"


def _scientific(value: float, step: float) -> str:
    power = math.floor(math.log10(abs(value)) + 1e-9)
    unit = 10.0**power
    words = f"{value / unit:.{_decimals(step / unit)}f}"
    return f"{words.rstrip('0').rstrip('.') if '.' in words else words}e{power}"
