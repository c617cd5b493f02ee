"""Trackio's own store on this machine. Skipped without it: `make trackers-env`."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tracked_run import BATCHES, Tracked

pytest.importorskip("trackio", exc_type=ImportError)
pytestmark = pytest.mark.slow


def rows(store: Path, run: str) -> list[tuple[int, dict[str, float]]]:
    """By step, in the order logged."""
    connection = sqlite3.connect(store)
    try:
        got = connection.execute("SELECT step, metrics FROM metrics WHERE run_name = ? ORDER BY step, id", (run,))
        return [(step, json.loads(metrics)) for step, metrics in got]
    finally:
        connection.close()


def test_it_has_what_the_record_has(tracked: Tracked) -> None:
    """Of a step that was taken back and trained again it has both; the later one is the record's."""
    got = rows(tracked.home / "trackio" / "p.db", tracked.id("trackio"))
    batches = [(step, values) for step, values in got if "reward/mean" in values]
    expected = list(tracked.batches.items())
    assert batches == [*expected[:2], *tracked.taken_back.items(), *expected[2:]]
    assert [(step, values) for step, values in got if "eval/score" in values] == list(tracked.evaluations.items())


def test_config_and_summary(tracked: Tracked) -> None:
    store = tracked.home / "trackio" / "p.db"
    connection = sqlite3.connect(store)
    try:
        ((runs,),) = connection.execute("SELECT count(DISTINCT run_id) FROM metrics")
        ((config,),) = connection.execute("SELECT config FROM configs")
    finally:
        connection.close()
    assert runs == 1, "one run for both processes"
    assert json.loads(config)["trainer.batches"] == BATCHES
    of_killed, summary = [values for _, values in rows(store, tracked.id("trackio")) if "summary/status" in values]
    assert of_killed["summary/status"] == "killed"
    assert (summary["summary/status"], summary["summary/version"]) == ("finished", BATCHES)
    assert summary["summary/reward/last"] == tracked.summary["reward"]["last"]


_SAMPLES = """
import sys
from pathlib import Path
from headrace.config.track import TrackioTracker
from headrace.observe.trackers.protocol import TrackedRun
from headrace.observe.trackers.trackio import TrackioRun

tracker = TrackioRun(TrackedRun("run", "ab", Path(sys.argv[1]), {}, None), TrackioTracker(project="q", name="n"))
tracker.samples(7, 5.0, [{"prompt": "2+3=", "response": "<b>5</b>", "reward": 1.0}])
tracker.close("finished", {})
"""


def trackio_process(program: str, folder: Path, store: Path) -> subprocess.CompletedProcess[str]:
    """Trackio reads where its store is when it is imported."""
    environment = {**os.environ, "TRACKIO_DIR": str(store)}
    command = [sys.executable, "-c", program, str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)


def test_a_store_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    done = trackio_process(_SAMPLES, tmp_path, tmp_path / "taken")
    assert done.returncode == 1
    assert str(tmp_path / "taken") in done.stderr.splitlines()[-1]


def test_samples_are_a_table(tmp_path: Path) -> None:
    done = trackio_process(_SAMPLES, tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr
    ((step, values),) = [row for row in rows(tmp_path / "q.db", "n-ab") if "samples" in row[1]]
    assert step == 7
    assert '"<b>5</b>"' in json.dumps(values["samples"])
