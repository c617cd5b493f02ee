"""What is drawn in one picture: runs of `headrace train`, or offline trainers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.observe.offline.run_record import OfflineRun
from headrace.observe.run_record import RunRecord
from headrace.viewer.plot import curves as of_runs
from headrace.viewer.plot import offline as of_trainers
from headrace.viewer.plot.curves import Axis, Panel
from headrace.viewer.plot.points import Curve

Drawn = RunRecord | OfflineRun


class Mixed(ValueError):
    """Runs that share no panels."""


def panels(runs: Sequence[Drawn]) -> tuple[Panel, ...]:
    """Raises Mixed."""
    trained = [run for run in runs if isinstance(run, RunRecord)]
    offline = [run for run in runs if isinstance(run, OfflineRun)]
    if trained and offline:
        raise Mixed(
            f"{trained[0].name} is a run of headrace train and {offline[0].name} one of headrace {offline[0].kind}, "
            "which record different things; draw them apart"
        )
    return of_runs.panels(trained) if trained else of_trainers.panels(offline)


def curves(run: Drawn, shown: Iterable[Panel], by: Axis) -> dict[str, Mapping[str, Curve]]:
    """By key of the panel its curves by name."""
    return of_runs.curves(run, shown, by) if isinstance(run, RunRecord) else of_trainers.curves(run, shown, by)


def x_name(runs: Sequence[Drawn]) -> str:
    """Of what is along x, unless that is time."""
    return "batches trained" if all(isinstance(run, RunRecord) for run in runs) else "steps"


def mark(run: Drawn) -> str:
    """How far it is, as `v3` or `step 3`."""
    return f"v{run.number}" if isinstance(run, RunRecord) else f"step {run.number}"
