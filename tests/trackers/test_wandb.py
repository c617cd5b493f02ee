"""W&B offline: what its file holds. Skipped without it: `make trackers-env`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tracked_run import BATCHES, COMMITTED, KILLED_AFTER, Tracked
from wandb_file import items, records

wandb = pytest.importorskip("wandb", exc_type=ImportError)
pytestmark = pytest.mark.slow


def files(tracked: Tracked) -> list[Path]:
    """One for each process of the run, the first one first."""
    return sorted((tracked.folder / "trackers" / "wandb").rglob("*.wandb"), key=lambda path: path.stat().st_mtime)


def history(path: Path) -> list[dict[str, Any]]:
    rows = [items(record.history.item) for record in records(path) if record.WhichOneof("record_type") == "history"]
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]


def test_it_has_what_the_record_has(tracked: Tracked) -> None:
    first, second = map(history, files(tracked))
    expected = {step: {"batches": step, **values} for step, values in tracked.batches.items()}
    assert [row for row in second if "reward/mean" in row] == [expected[3], expected[4]]
    before = [row for row in first if "reward/mean" in row]
    assert before[:COMMITTED] == [expected[1], expected[2]]
    taken_back = [{"batches": step, **values} for step, values in tracked.taken_back.items()]
    assert before[COMMITTED:] == taken_back
    assert [row["run/branch"] for row in taken_back] == [0.0] * (KILLED_AFTER - COMMITTED)
    scores = [row for row in first + second if "eval/score" in row]
    assert scores == [{"batches": step, **values} for step, values in tracked.evaluations.items()]


def test_both_processes_log_to_one_run_over_batches(tracked: Tracked) -> None:
    for path in files(tracked):
        told = list(records(path))
        (run,) = {(r.run.run_id, r.run.project, r.run.run_group) for r in told if r.WhichOneof("record_type") == "run"}
        assert run == (tracked.id("wandb"), "p", "g")
        metrics = [r.metric for r in told if r.WhichOneof("record_type") == "metric"]
        assert "batches" in {metric.step_metric for metric in metrics}


def test_config_and_summary(tracked: Tracked) -> None:
    first, second = files(tracked)
    (config, *_) = [items(r.run.config.update) for r in records(first) if r.WhichOneof("record_type") == "run"]
    assert {name: config[name] for name in tracked.config} == tracked.config
    summary: dict[str, Any] = {}
    for record in records(second):
        if record.WhichOneof("record_type") == "summary":
            summary |= items(record.summary.update)
    assert summary["summary/status"] == "finished"
    assert summary["summary/version"] == BATCHES
    assert summary["summary/reward/last"] == tracked.summary["reward"]["last"]


def test_samples_are_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.config.track import WandbTracker
    from headrace.observe.trackers.protocol import TrackedRun
    from headrace.observe.trackers.wandb import WandbRun

    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = WandbRun(TrackedRun("run", "ab", tmp_path, {}, None), WandbTracker())
    tracker.samples(7, 5.0, [{"prompt": "2+3=", "response": "<b>5</b>", "reward": 1.0}])
    tracker.close("finished", {})
    (path,) = tmp_path.rglob("*.wandb")
    (row,) = [row for row in history(path) if any(name.startswith("samples") for name in row)]
    assert row["batches"] == 7
    tables = [path.read_text() for path in tmp_path.rglob("*.table.json")]
    assert tables
    assert all('"<b>5</b>"' in table for table in tables)
