"""Numbers as short strings, and as bars and curves of block characters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

_EIGHTHS_ACROSS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_EIGHTHS_UP = " ▁▂▃▄▅▆▇█"
_FAR = 1e300
"""Values beyond, infinities and NaN among them, have no place on a curve."""


def amount(number: float | None) -> str:
    """`842`, `5.1k`, `37M`; `-` for None."""
    if number is None:
        return "-"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        # Half of the last shown digit early: 999,950 is 1.0M, not 1000k.
        if abs(number) >= size * 0.9995:
            scaled = number / size
            return f"{scaled:.1f}{unit}" if abs(scaled) < 99.95 else f"{scaled:.0f}{unit}"
    return f"{number:.0f}"


def duration(seconds: float | None) -> str:
    """`0:42`, `1:03:07`, `2d 04:00`; `-` for None."""
    if seconds is None:
        return "-"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def brief(seconds: float | None) -> str:
    """`0.3 ms`, `12 ms`, `1.4 s`; `-` for None."""
    if seconds is None:
        return "-"
    if seconds < 0.9995:
        return f"{1000 * seconds:.1f} ms" if seconds < 0.00995 else f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s"


def decimal(number: float | None, places: int = 3) -> str:
    """`0.812`, `1.2e-05` where so many places would show nothing; `-` for None."""
    if number is None:
        return "-"
    if number and abs(number) < 10**-places:
        return f"{number:.1e}"
    return f"{number:.{places}f}"


def near_zero(number: float, places: int = 3) -> str:
    """As `decimal`, where what rounds to 0 is 0: a loss of -1.1e-08 says no more."""
    return f"{round(number, places) + 0.0:.{places}f}"


def by_name(counts: Mapping[str, int]) -> str:
    """As `reward_raised 2, timeout 1`."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def percent(share: float) -> str:
    return f"{share:.0%}"


def percents(shares: Sequence[float]) -> list[str]:
    """Of shares that add up to 1, whole percents that add up to 100: those with the largest remainders go up."""
    whole = [math.floor(100 * share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda place: whole[place] - 100 * shares[place])
    for place in by_remainder[: max(round(100 * sum(shares)) - sum(whole), 0)]:
        whole[place] += 1
    return [f"{each}%" for each in whole]


def bar(share: float, width: int) -> str:
    """A bar of at most `width` cells; anything above 0 shows at least an eighth of a cell."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    whole, part = divmod(eighths, 8)
    return "█" * whole + _EIGHTHS_ACROSS[part]


def curve(values: Sequence[float], width: int, height: int, span: int) -> list[str]:
    """`height` lines of `width` cells, top first: columns between the lowest and the highest value.

    `span` values would fill the width; fewer fill their part of it, more than a cell's worth are averaged.
    Values
    that are not finite, or nearly so, are left out.
    """
    columns = _columns([value if abs(value) < _FAR else None for value in values], width, max(span, len(values), 1))
    known = [value for value in columns if value is not None]
    if not known:
        return [" " * width] * height
    low, high = min(known), max(known)
    steps = height * 8
    lines = []
    for row in range(height - 1, -1, -1):
        cells = []
        for value in columns:
            if value is None:
                cells.append(" ")
                continue
            level = steps // 2 if high == low else 1 + round((value - low) / (high - low) * (steps - 1))
            cells.append(_EIGHTHS_UP[min(max(level - row * 8, 0), 8)])
        lines.append("".join(cells))
    return lines


def _columns(values: Sequence[float | None], width: int, span: int) -> list[float | None]:
    columns: list[float | None] = []
    for column in range(width):
        first = column * span // width
        after = max((column + 1) * span // width, first + 1)
        known = [value for value in values[first:after] if value is not None]
        columns.append(sum(known) / len(known) if known else None)
    return columns
