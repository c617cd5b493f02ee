"""Alarms: what a record must show before one is raised."""

from __future__ import annotations

import io

import pytest
from observe_samples import batch, run
from rich.console import Console

from headrace.observe.alarms import alarms
from headrace.observe.live import render
from headrace.observe.plain import PlainView
from headrace.observe.snapshot import take_snapshot


def _batches(masses: list[float | None]) -> tuple:
    return tuple(batch(i, kept_mass=mass) for i, mass in enumerate(masses))


@pytest.mark.parametrize(
    ("masses", "alarmed"),
    [
        ([0.95] * 5 + [0.84] * 5, True),
        ([0.95] * 5 + [0.86] * 5, False),
        ([0.95] * 5 + [0.1] * 4, False),  # too early to tell
        ([0.95] * 5 + [0.1] * 5 + [0.95] * 5, False),  # it came back
        ([None] * 20, False),
    ],
)
def test_a_fall_of_the_kept_mass_is_an_alarm(masses: list[float | None], alarmed: bool) -> None:
    assert bool(alarms(_batches(masses))) is alarmed


def test_views_show_it_once_and_name_both_values() -> None:
    snapshot = take_snapshot(run(batches=_batches([0.95] * 5 + [0.5] * 5)))
    lines: list[str] = []
    view = PlainView(lines.append)
    view.show(snapshot)
    view.show(snapshot)
    assert len([line for line in lines if line.startswith("ALARM kept mass fell from 0.95 to 0.50")]) == 1
    console = Console(file=io.StringIO(), width=120, height=30)
    console.print(render(snapshot, 120, 30))
    assert "ALARM kept mass fell from 0.95" in console.file.getvalue()  # type: ignore[attr-defined]
