"""A chart as one HTML page that needs nothing else: the SVG, its values, and a script that shows those under the
pointer. The page's policy lets that one script and that one style sheet be used and nothing be fetched, so that no text
in it can do more than be shown."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from headrace.observe.untrusted import visible_line
from headrace.viewer.html import json_element, policy
from headrace.viewer.plot.chart import Chart
from headrace.viewer.plot.layout import Frame, lay_out, visible
from headrace.viewer.plot.marks import DARK, LIGHT, MOST_COLOURS
from headrace.viewer.plot.svg import to_svg

_DIGITS = 7


def render_page(chart: Chart) -> bytes:
    drawing, frames = lay_out(chart)
    script = files("headrace.viewer.plot").joinpath("hover.js").read_text(encoding="utf-8")
    style = _style()
    title = escape(visible_line(chart.title))
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy(script=script, style=style)}">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{title}</title>",
            f"<style>{style}</style>",
            to_svg(drawing, visible_line(chart.title)).rstrip(),
            '<div id="tip" hidden></div>',
            json_element("data", _values(chart, frames)),
            f"<script>{script}</script>",
            "</html>\n",
        )
    ).encode()


def _values(chart: Chart, frames: tuple[Frame, ...]) -> dict[str, Any]:
    """What the script shows."""
    return {
        "xName": chart.x_name,
        "xUnit": chart.x_unit,
        "last": chart.last,
        "entries": [visible_line(entry.name) for entry in chart.entries],
        "plots": [
            {
                "title": visible_line(frame.plot.panel.title),
                "unit": frame.plot.panel.unit,
                "left": frame.left,
                "top": frame.top,
                "width": frame.width,
                "height": frame.height,
                "lines": [
                    {
                        "entry": line.entry,
                        "measure": frame.plot.panel.measures[line.measure].name,
                        "points": [
                            [_short(value) for value in (at.x, at.y, at.low, at.high)]
                            for at in visible(frame, line.curve)
                            if at.y is not None
                        ],
                    }
                    for line in frame.plot.lines
                ],
            }
            for frame in frames
        ],
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


def _style() -> str:
    return (
        "body{margin:0;font:12px Helvetica,Arial,'DejaVu Sans',sans-serif}"
        "body>svg{display:block;margin:auto;max-width:100%;height:auto}"
        "#tip{position:absolute;pointer-events:none;max-width:90vw;padding:6px 9px;border-radius:4px;border:1px solid}"
        "#tip .row{display:flex;gap:6px;align-items:center}"
        "#tip .name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;max-width:22em}"
        "#tip .value{margin-left:auto;padding-left:10px;white-space:nowrap;font-weight:bold}"
        "#tip .swatch{width:10px;height:10px;border-radius:2px;flex:none}"
        + _colours(LIGHT)
        + f"@media(prefers-color-scheme:dark){{{_colours(DARK)}}}"
    )


def _colours(colours: Mapping[str, str]) -> str:
    drawn = "".join(
        f".{name}{{fill:{colour}}}.{name}.line{{fill:none;stroke:{colour}}}" for name, colour in colours.items()
    )
    swatches = "".join(f"#tip .e{number}{{background:{colours[f'c{number}']}}}" for number in range(MOST_COLOURS))
    return (
        f"body{{background:{colours['ground']};color:{colours['ink']}}}"
        f"#tip{{background:{colours['ground']};border-color:{colours['grid']}}}"
        f"#tip .muted{{color:{colours['muted']}}}{drawn}{swatches}"
    )
