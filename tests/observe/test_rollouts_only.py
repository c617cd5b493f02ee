"""A run that only records says so, wherever one that trains counts what it trained."""

from __future__ import annotations

import io

import observe_samples as samples
from rich.console import Console

from headrace.observe.summary import build_summary
from headrace.viewer.terminal.inspect_text import describe_run
from headrace.viewer.terminal.live import render
from headrace.viewer.terminal.snapshot import take_snapshot


def test_what_only_was_recorded_is_not_called_trained_and_its_rewards_no_learning() -> None:
    run = samples.run(config=samples.config(rollouts_only=True))
    console = Console(file=io.StringIO(), width=140, height=40, color_system=None)
    console.print(describe_run(run, build_summary(run), 140))
    console.print(render(take_snapshot(run), 140, 40))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "nothing was trained; the first batches are of the answers that ended first" in shown
    assert "12 recorded + 1 dropped" in shown
    assert "48 recorded" in shown
    assert "recorded 12" in shown
    assert "12 trained" not in shown
