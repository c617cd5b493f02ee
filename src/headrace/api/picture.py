"""The curves of runs, as a file or to be shown in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from headrace.api.errors import for_caller
from headrace.config.errors import ConfigError
from headrace.observe.offline.run_record import OfflineWatcher
from headrace.observe.run_record import RunRecord, RunWatcher
from headrace.store import RunReader, StoreError
from headrace.store.media.files import write_whole
from headrace.store.tables import TRAIN
from headrace.viewer.plot.chart import Chart, NotDrawable, make_chart
from headrace.viewer.plot.curves import Axis
from headrace.viewer.plot.drawn import Drawn
from headrace.viewer.plot.svg import render_svg
from headrace.viewer.plot.words import distinct

Render = Callable[[Chart], bytes]


@dataclass(frozen=True, slots=True, repr=False)
class Picture:
    """Shown by notebooks."""

    chart: Chart
    path: Path | None
    """Where it was written to as well."""

    @property
    def svg(self) -> str:
        return render_svg(self.chart).decode()

    def __repr__(self) -> str:
        return f"<picture{'' if self.path is None else f' {self.path}'}>"

    def _repr_svg_(self) -> str:
        return self.svg


def picture_of(
    folders: Sequence[Path],
    out: Path | None = None,
    *,
    by: Axis = "batch",
    smooth: int = 1,
    each: bool = False,
) -> Picture:
    """See `make_chart`; written to `out` too. Raises ConfigError, StoreError."""
    if by not in get_args(Axis):
        raise ConfigError(f"by is {by!r}; use {', '.join(get_args(Axis))}")
    render = None if out is None else _renderer(out)
    if smooth < 1:
        raise ConfigError(f"--smooth is {smooth}; give a number of batches, 1 or more")
    names = _names(folders)
    runs = [_read(folder) for folder in folders]
    try:
        chart = make_chart(runs, names, by=by, smooth=smooth, each=each)
    except NotDrawable as error:
        raise ConfigError(str(error)) from error
    if out is not None and render is not None:
        write_whole(out, render(chart))
    return Picture(chart, out)


def picture_for_caller(
    folder: Path, path: str | Path | None, *, by: Axis, smooth: int, beside: Sequence[Path]
) -> Picture:
    """What a run's `plot` gives: see `headrace.Run.plot`. `beside`: folders of the runs that are drawn beside it."""
    try:
        return picture_of([folder, *beside], None if path is None else Path(path), by=by, smooth=smooth)
    except (ConfigError, StoreError) as error:
        raise for_caller(error) from None


def _renderer(out: Path) -> Render:
    """What draws a chart for a file of this name. Raises ConfigError, also where it could not be written."""
    if out.is_dir():
        raise ConfigError(f"-o {out} is a folder; give a file, as {out / 'plot.svg'}")
    if not out.parent.is_dir():
        raise ConfigError(f"-o {out}: there is no folder {out.parent}; make it, or give another path")
    match out.suffix.lower():
        case ".svg":
            return render_svg
        case ".html" | ".htm":
            from headrace.viewer.plot.page import render_page

            return render_page
        case ".png":
            if find_spec("matplotlib") is None:
                raise ConfigError(
                    f"-o {out}: a PNG needs matplotlib: pip install 'headrace[plot]'; .svg and .html need nothing more"
                )
            from headrace.viewer.plot.png import render_png

            return render_png
    ending = f"{out.suffix} is no picture" if out.suffix else "it has no ending that says what to draw"
    raise ConfigError(f"-o {out}: {ending}; end it in .svg, .html or .png")


def _names(folders: Sequence[Path]) -> tuple[str, ...]:
    """Raises ConfigError."""
    resolved = [folder.resolve() for folder in folders]
    for place, folder in enumerate(resolved):
        if folder in resolved[:place]:
            raise ConfigError(f"{folders[place]} is given twice; give each run once")
    return distinct(resolved)


def _read(folder: Path) -> Drawn:
    """Raises ConfigError, StoreError."""
    with RunReader(folder) as reader:
        record = RunWatcher(reader).read() if reader.kind == TRAIN else OfflineWatcher(reader).read()
    if not record.number or (isinstance(record, RunRecord) and not record.batches):
        raise ConfigError(f"{folder} has trained no batch yet: there is nothing to plot; its status is {record.status}")
    return record
