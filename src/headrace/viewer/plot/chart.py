"""A chart: the lines of some runs in data units, panel by panel, with all that is written around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.viewer.plot.curves import Axis, Panel
from headrace.viewer.plot.drawn import Drawn, Mixed, curves, mark, panels, x_name
from headrace.viewer.plot.marks import MOST_COLOURS
from headrace.viewer.plot.points import Curve, smoothed
from headrace.viewer.plot.seeds import band, together

_NAMES_SHOWN = 3
_UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


@dataclass(frozen=True, slots=True)
class Entry:
    """A run, or the seeds of a config, that has a colour of its own."""

    name: str
    detail: str
    is_band: bool


@dataclass(frozen=True, slots=True)
class Line:
    entry: int
    measure: int
    """Its place among those of the panel."""
    curve: Curve
    recorded: Curve = ()
    """Before it was smoothed, where it was."""


@dataclass(frozen=True, slots=True)
class Plot:
    panel: Panel
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    entries: tuple[Entry, ...]
    plots: tuple[Plot, ...]
    x_name: str
    x_unit: float
    """What of x is 1 on the axis."""
    last: float
    """The largest x, positive."""
    whole: bool
    """Whether x are whole numbers."""
    notes: tuple[str, ...]

    @property
    def title(self) -> str:
        return "Curves of " + ", ".join(entry.name for entry in self.entries)


class NotDrawable(ValueError):
    """These runs cannot be drawn so; the message says why, and what can."""


def make_chart(
    runs: Sequence[Drawn], names: Sequence[str], *, by: Axis = "batch", smooth: int = 1, each: bool = False
) -> Chart:
    """`names` of the runs, in their order. `smooth`: batches that a value is the mean of. `each`: seeds of one config
    are lines of their own, too. Every run must have trained a batch.

    Raises NotDrawable.
    """
    groups = [[place] for place in range(len(runs))] if each else together(runs)
    if len(groups) > MOST_COLOURS:
        raise NotDrawable(
            f"{len(groups)} runs are more lines than can be told apart: give {MOST_COLOURS} at most (seeds of one "
            "config count as one, unless --each is given)"
        )
    try:
        shown = panels(runs)
    except Mixed as error:
        raise NotDrawable(str(error)) from error
    found = [curves(run, shown, by) for run in runs]
    plots = []
    for panel in shown:
        # Evaluations are few, and each is of many prompts: they stay as they are.
        window = 1 if panel.dots else smooth
        lines = tuple(
            line
            for entry, group in enumerate(groups)
            for line in _lines(panel, entry, [found[place][panel.key] for place in group], by, window)
        )
        if lines:
            plots.append(Plot(panel, lines))
    if not plots:
        raise NotDrawable("there is no time at which all seeds have a value; give --by batch, or --each")
    last = max(at.x for plot in plots for line in plot.lines for at in line.curve)
    unit, unit_name = next((unit for unit in _UNITS if last >= 2 * unit[0]), _UNITS[-1])
    return Chart(
        entries=tuple(_entry([runs[place] for place in group], [names[place] for place in group]) for group in groups),
        plots=tuple(plots),
        x_name=x_name(runs) if by == "batch" else f"{unit_name} of running",
        x_unit=1.0 if by == "batch" else unit,
        last=last if last > 0 else 1.0,
        whole=by == "batch",
        notes=tuple(_notes(groups, by, smooth)),
    )


def _lines(panel: Panel, entry: int, found: Sequence[Mapping[str, Curve]], by: Axis, window: int) -> list[Line]:
    """`found`: of each run of the entry the curves by measure."""
    lines = []
    for place, measure in enumerate(panel.measures):
        recorded = [by_name[measure.name] for by_name in found if measure.name in by_name]
        drawn = [smoothed(curve, window) for curve in recorded] if window > 1 else recorded
        if len(recorded) > 1:
            drawn, recorded = [band(drawn, between=by == "time")], []
        lines += [Line(entry, place, curve, recorded[0] if recorded and window > 1 else ()) for curve in drawn if curve]
    return lines


def _entry(runs: Sequence[Drawn], names: Sequence[str]) -> Entry:
    if len(runs) == 1:
        (run,) = runs
        return Entry(names[0], "" if run.status == "finished" else f"{run.status} at {mark(run)}", False)
    shown = ", ".join(names) if len(names) <= _NAMES_SHOWN else f"{names[0]}, {names[1]} … {names[-1]}"
    seeds = ", ".join(str(run.config.seed) for run in runs[:_NAMES_SHOWN]) + ("" if len(runs) <= _NAMES_SHOWN else " …")
    return Entry(shown, f"mean of {len(runs)} runs (seeds {seeds}); band: lowest to highest", True)


def _notes(groups: Sequence[Sequence[int]], by: Axis, smooth: int) -> list[str]:
    notes = []
    if smooth > 1:
        seeds = ", seed by seed" if any(len(group) > 1 for group in groups) else ""
        faint = "" if all(len(group) > 1 for group in groups) else "; faint: as recorded"
        notes.append(f"smoothed: mean of the last {smooth} batches{seeds}, but for evaluations{faint}")
    if any(len(group) > 1 for group in groups):
        notes.append(
            "mean and band: where all seeds have a value"
            + ("" if by == "batch" else ", straight between the points of each")
        )
    return notes
