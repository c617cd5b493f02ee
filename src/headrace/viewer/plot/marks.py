"""What a drawing is made of: marks in pixels, from the top left corner, each in a colour that has a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Anchor = Literal["start", "middle", "end"]
Place = tuple[float, float]

LIGHT = {
    "ground": "#ffffff",
    "ink": "#1f2328",
    "muted": "#59636e",
    "grid": "#e3e7eb",
    "c0": "#0072b2",
    "c1": "#d55e00",
    "c2": "#009e73",
    "c3": "#cc79a7",
    "c4": "#e69f00",
    "c5": "#56b4e9",
    "c6": "#4d4d4d",
}
"""Runs are `c0` .. `c6`: the colours of Okabe and Ito (Color Universal Design, 2008) that show on white, which people
with any colour vision tell apart."""
DARK = {
    **LIGHT,
    "ground": "#15191f",
    "ink": "#e6e9ed",
    "muted": "#9aa4af",
    "grid": "#2b323b",
    "c0": "#4aa8e0",
    "c1": "#f08a3c",
    "c2": "#25c299",
    "c3": "#e29bc4",
    "c4": "#f0c24a",
    "c5": "#9fd6f7",
    "c6": "#b5bcc4",
}
"""The same, lighter."""
MOST_COLOURS = 7
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 3), (1, 2.5))
"""Of the first, second, ... line of a panel."""


@dataclass(frozen=True, slots=True)
class Text:
    x: float
    y: float
    """Of the baseline."""
    words: str
    size: float
    anchor: Anchor = "start"
    bold: bool = False
    colour: str = "ink"
    whole: str = ""
    """What `words` was cut from."""


@dataclass(frozen=True, slots=True)
class Path:
    places: Sequence[Place]
    colour: str
    width: float
    dash: Sequence[float] = ()
    opacity: float = 1.0
    names: str = ""
    """What it shows, for whoever points at it."""


@dataclass(frozen=True, slots=True)
class Area:
    outline: Sequence[Place]
    colour: str
    opacity: float


@dataclass(frozen=True, slots=True)
class Dot:
    x: float
    y: float
    radius: float
    colour: str
    opacity: float = 1.0
    names: str = ""


Mark = Text | Path | Area | Dot


@dataclass(frozen=True, slots=True)
class Drawing:
    width: float
    height: float
    marks: Sequence[Mark]
