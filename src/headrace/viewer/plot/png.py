"""A drawing as PNG, by matplotlib (the extra `plot`), which brings fonts of its own."""

from __future__ import annotations

import io
import warnings
from typing import Any, Literal

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon
from matplotlib.text import Text as Words

from headrace.viewer.plot.chart import Chart
from headrace.viewer.plot.layout import lay_out
from headrace.viewer.plot.marks import LIGHT, Anchor, Area, Dot, Drawing, Mark, Path, Text

_SCALE = 2
"""Pixels of the image for one of the drawing."""
_POINTS = 72
_ALIGNED: dict[Anchor, Literal["left", "center", "right"]] = {"start": "left", "middle": "center", "end": "right"}


def render_png(chart: Chart) -> bytes:
    drawing, _ = lay_out(chart)
    return to_png(drawing)


def to_png(drawing: Drawing) -> bytes:
    size = (drawing.width / _POINTS, drawing.height / _POINTS)
    figure = Figure(figsize=size, dpi=_SCALE * _POINTS, facecolor=LIGHT["ground"])
    canvas = FigureCanvasAgg(figure)
    for order, mark in enumerate(drawing.marks):
        artist = _artist(mark, drawing)
        artist.set_zorder(order)
        figure.add_artist(artist)
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box stands for it
        canvas.print_png(out)
    return out.getvalue()


def _artist(mark: Mark, drawing: Drawing) -> Any:
    """In pixels of the drawing, which are points of the figure."""
    colour = LIGHT[mark.colour]
    match mark:
        case Text():
            return Words(
                mark.x / drawing.width,
                1 - mark.y / drawing.height,
                mark.words,
                fontsize=mark.size,
                fontfamily="DejaVu Sans",
                fontweight="bold" if mark.bold else "normal",
                color=colour,
                horizontalalignment=_ALIGNED[mark.anchor],
                verticalalignment="baseline",
                parse_math=False,
                usetex=False,
            )
        case Path():
            return Line2D(
                [x / drawing.width for x, _ in mark.places],
                [1 - y / drawing.height for _, y in mark.places],
                color=colour,
                linewidth=mark.width,
                linestyle=(0, [length / mark.width for length in mark.dash]) if mark.dash else "-",
                alpha=mark.opacity,
                solid_joinstyle="round",
                solid_capstyle="butt",
            )
        case Area():
            outline = [(x / drawing.width, 1 - y / drawing.height) for x, y in mark.outline]
            return Polygon(outline, closed=True, facecolor=colour, edgecolor="none", alpha=mark.opacity)
        case Dot():
            return Line2D(
                [mark.x / drawing.width],
                [1 - mark.y / drawing.height],
                marker="o",
                markersize=2 * mark.radius,
                markeredgewidth=0,
                color=colour,
                alpha=mark.opacity,
            )
