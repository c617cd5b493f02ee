"""A drawing as SVG 1.1. Colours are attributes, for programs that know no style sheets, and classes for pages."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

from headrace.observe.untrusted import visible_line
from headrace.viewer.plot.chart import Chart
from headrace.viewer.plot.layout import lay_out
from headrace.viewer.plot.marks import LIGHT, Area, Dot, Drawing, Mark, Path, Place, Text

_FONTS = "Helvetica, Arial, 'DejaVu Sans', sans-serif"


def render_svg(chart: Chart) -> bytes:
    drawing, _ = lay_out(chart)
    return to_svg(drawing, visible_line(chart.title)).encode()


def to_svg(drawing: Drawing, title: str) -> str:
    """`title`: for whoever cannot see the picture; of characters that XML knows, as those of all marks."""
    width, height = _number(drawing.width), _number(drawing.height)
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="{_FONTS}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect class="ground" width="{width}" height="{height}" fill="{LIGHT["ground"]}"/>',
        *map(_mark, drawing.marks),
        "</svg>",
    )
    return "\n".join(lines) + "\n"


def _mark(mark: Mark) -> str:
    colour = LIGHT[mark.colour]
    match mark:
        case Text():
            bold = ' font-weight="bold"' if mark.bold else ""
            anchor = "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
            whole = f"<title>{escape(mark.whole)}</title>" if mark.whole not in ("", mark.words) else ""
            return (
                f'<text class="{mark.colour}" x="{_number(mark.x)}" y="{_number(mark.y)}" font-size="'
                f'{_number(mark.size)}"{bold}{anchor} fill="{colour}">{whole}{escape(mark.words)}</text>'
            )
        case Path():
            dash = f' stroke-dasharray="{" ".join(map(_number, mark.dash))}"' if mark.dash else ""
            shape = (
                f'class="{mark.colour} line" d="{_along(mark.places)}" stroke="{colour}" stroke-width="'
                f'{_number(mark.width)}"{dash}{_opacity(mark.opacity)} fill="none" stroke-linejoin="round"'
            )
            return _named("path", shape, mark.names)
        case Area():
            return f'<path class="{mark.colour}" d="{_along(mark.outline)}Z" fill="{colour}"{_opacity(mark.opacity)}/>'
        case Dot():
            shape = (
                f'class="{mark.colour}" cx="{_number(mark.x)}" cy="{_number(mark.y)}" r="{_number(mark.radius)}" '
                f'fill="{colour}"{_opacity(mark.opacity)}'
            )
            return _named("circle", shape, mark.names)


def _named(element: str, attributes: str, names: str) -> str:
    title = f"><title>{escape(names)}</title></{element}>" if names else "/>"
    return f"<{element} {attributes}{title}"


def _along(places: Iterable[Place]) -> str:
    return "M" + "L".join(f"{_number(x, 1)} {_number(y, 1)}" for x, y in places)


def _opacity(opacity: float) -> str:
    return "" if opacity == 1 else f' opacity="{_number(opacity)}"'


def _number(value: float, digits: int = 2) -> str:
    """Of places a tenth of a pixel is enough, and most of a file is places."""
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")
