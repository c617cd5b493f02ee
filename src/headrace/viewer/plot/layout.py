"""Where everything stands: from a chart in data units to marks in pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.observe.untrusted import visible_line
from headrace.viewer.plot.chart import Chart, Entry, Line, Plot
from headrace.viewer.plot.marks import DASHES, Area, Dot, Drawing, Mark, Path, Place, Text
from headrace.viewer.plot.points import Curve, Point, pieces, thinned
from headrace.viewer.plot.scale import Scale, along, scale_of
from headrace.viewer.plot.words import cut, width_of

WIDTH = 960.0
_COLUMNS = 3
_MARGIN, _GAP = 18.0, 22.0
_HEAD, _PLOT, _FOOT, _X_NAME = 34.0, 116.0, 20.0, 15.0
"""Heights, in a panel: title and unit, the plot, tick labels; and the axis's name under the last of a column."""
_ROW_GAP = 20.0
_TITLE, _WORDS, _SMALL = 13.0, 12.0, 11.0
_SWATCH = 22.0
_BOLD = 1.1
"""Bold letters are as wide as plain ones of so many times the size."""
_MOST_NAME = 420.0
_MOST_DOTS = 60
"""More would run into each other."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The box in which a plot's lines are, and its scales."""

    plot: Plot
    left: float
    top: float
    width: float
    height: float
    x: Scale
    y: Scale

    def place(self, x: float, y: float) -> Place:
        return self.left + self.width * self.x.place(x), self.top + self.height * (1 - self.y.place(y))


def lay_out(chart: Chart) -> tuple[Drawing, tuple[Frame, ...]]:
    """The drawing, and where its plots are in it."""
    columns = min(_COLUMNS, len(chart.plots))
    legend, top = _legend(chart.entries)
    frames = _frames(chart, columns, top)
    marks: list[Mark] = [*legend]
    for number, frame in enumerate(frames):
        marks += _axes(frame, chart, named=number + columns >= len(frames))
        marks += _head(frame)
        for line in frame.plot.lines:
            marks += _drawn(frame, line, chart.entries[line.entry])
    bottom = max(frame.top + frame.height for frame in frames) + _FOOT + _X_NAME
    for note in chart.notes:
        bottom += 16
        marks.append(Text(_MARGIN, bottom, note, _SMALL, colour="muted"))
    return Drawing(WIDTH, round(bottom + _MARGIN), marks), frames


def _legend(entries: Sequence[Entry]) -> tuple[list[Mark], float]:
    """The marks, and where they end."""
    marks: list[Mark] = []
    x, y = _MARGIN, _MARGIN + 8.0
    for number, entry in enumerate(entries):
        beside = _SWATCH + 7 + (6 + width_of(entry.detail, _WORDS) if entry.detail else 0)
        name = cut(visible_line(entry.name), _BOLD * _WORDS, min(WIDTH - 2 * _MARGIN - beside, _MOST_NAME))
        taken = beside + width_of(name, _BOLD * _WORDS)
        if x > _MARGIN and x + taken > WIDTH - _MARGIN:
            x, y = _MARGIN, y + 20
        colour = f"c{number}"
        if entry.is_band:
            box = ((x, y - 10), (x + _SWATCH, y - 10), (x + _SWATCH, y + 2), (x, y + 2))
            marks.append(Area(box, colour, 0.2))
        marks.append(Path(((x, y - 4), (x + _SWATCH, y - 4)), colour, 2.2))
        at = x + _SWATCH + 7
        marks.append(Text(at, y, name, _WORDS, bold=True, whole=visible_line(entry.name)))
        if entry.detail:
            marks.append(Text(at + width_of(name, _BOLD * _WORDS) + 6, y, entry.detail, _WORDS, colour="muted"))
        x += taken + 26
    return marks, y + 18


def _frames(chart: Chart, columns: int, top: float) -> tuple[Frame, ...]:
    along_x = along(chart.last / chart.x_unit, whole=chart.whole)
    x = Scale(0.0, chart.last, along_x.step * chart.x_unit)
    ys = [
        scale_of(
            (value for line in plot.lines for at in (*line.curve, *line.recorded) for value in at.values),
            from_zero=plot.panel.from_zero,
        )
        for plot in chart.plots
    ]
    room = 8 + max(width_of(y.label(tick), _SMALL) for y in ys for tick in y.ticks)
    cell = (WIDTH - 2 * _MARGIN - (columns - 1) * _GAP) / columns
    frames = []
    for number, (plot, y) in enumerate(zip(chart.plots, ys, strict=True)):
        row, column = divmod(number, columns)
        left = _MARGIN + column * (cell + _GAP) + room
        above = top + row * (_HEAD + _PLOT + _FOOT + _ROW_GAP) + _HEAD
        frames.append(Frame(plot, left, above, cell - room, _PLOT, x, y))
    return tuple(frames)


def _head(frame: Frame) -> Iterator[Mark]:
    panel, right = frame.plot.panel, frame.left + frame.width
    title = visible_line(panel.title)
    yield Text(frame.left, frame.top - 21, cut(title, _BOLD * _TITLE, frame.width), _TITLE, bold=True, whole=title)
    shown_lines = {line.measure for line in frame.plot.lines}
    x = right
    for number in reversed(range(len(panel.measures))):
        name = panel.measures[number].name
        if not name or number not in shown_lines:
            continue
        x -= width_of(name, _SMALL)
        yield Text(x, frame.top - 7, name, _SMALL, colour="muted")
        x -= _SWATCH + 4
        yield Path(((x, frame.top - 10.5), (x + _SWATCH - 2, frame.top - 10.5)), "muted", 1.6, DASHES[number])
        x -= 10
    yield Text(frame.left, frame.top - 7, cut(panel.unit, _SMALL, x - frame.left), _SMALL, colour="muted")


def _axes(frame: Frame, chart: Chart, *, named: bool) -> Iterator[Mark]:
    """Grid and labels. `named`: with the name of x below."""
    bottom, right = frame.top + frame.height, frame.left + frame.width
    for tick in frame.y.ticks:
        _, y = frame.place(0.0, tick)
        yield Path(((frame.left, y), (right, y)), "grid", 1)
        yield Text(frame.left - 6, y + 4, frame.y.label(tick), _SMALL, "end", colour="muted")
    axis = Scale(0.0, frame.x.high / chart.x_unit, frame.x.step / chart.x_unit)
    for tick in axis.ticks:
        x, _ = frame.place(tick * chart.x_unit, frame.y.low)
        yield Path(((x, bottom), (x, bottom + 4)), "muted", 1)
        yield Text(x, bottom + 16, axis.label(tick), _SMALL, "middle", colour="muted")
    yield Path(((frame.left, bottom), (right, bottom)), "muted", 1)
    if named:
        yield Text((frame.left + right) / 2, bottom + _FOOT + 11, chart.x_name, _SMALL, "middle", colour="muted")


def _drawn(frame: Frame, line: Line, entry: Entry) -> Iterator[Mark]:
    colour, dash = f"c{line.entry}", DASHES[line.measure]
    measure = frame.plot.panel.measures[line.measure].name
    names = ", ".join(visible_line(part) for part in (entry.name, frame.plot.panel.title, measure) if part)
    for piece in pieces(visible(frame, line.recorded)):
        yield from _stroke(frame, piece, colour, 1.0, (), 0.25, names)
    curve = visible(frame, line.curve)
    for piece in pieces(curve):
        if entry.is_band and len(piece) > 1 and piece[0].low is not None:
            upper = [frame.place(at.x, at.high if at.high is not None else at.y or 0.0) for at in piece]
            lower = [frame.place(at.x, at.low if at.low is not None else at.y or 0.0) for at in piece]
            yield Area((*upper, *reversed(lower)), colour, 0.2)
        yield from _stroke(frame, piece, colour, 1.6, dash, 1.0, names)
    known = [at for at in curve if at.y is not None]
    if frame.plot.panel.dots and 1 < len(known) <= _MOST_DOTS:
        for at in known:
            yield Dot(*frame.place(at.x, at.y or 0.0), 2.6, colour, names=names)


def visible(frame: Frame, curve: Curve) -> Curve:
    """The points that are drawn."""
    return thinned(curve, round(2 * frame.width))


def _stroke(
    frame: Frame, piece: Sequence[Point], colour: str, width: float, dash: Sequence[float], opacity: float, names: str
) -> Iterator[Mark]:
    places = [frame.place(at.x, at.y or 0.0) for at in piece]
    if len(places) == 1:
        yield Dot(*places[0], width + 0.8, colour, opacity, names)
    else:
        yield Path(places, colour, width, dash, opacity, names)
