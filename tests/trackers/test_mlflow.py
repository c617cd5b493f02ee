"""MLflow on SQLite, read by its client. Skipped without it: `make trackers-env`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tracked_run import BATCHES, Tracked

tracking = pytest.importorskip("mlflow.tracking", exc_type=ImportError)
pytestmark = pytest.mark.slow


def test_it_has_what_the_record_has(tracked: Tracked) -> None:
    """Of a step that was taken back and trained again it has both values; the later one is the record's."""
    client = tracking.MlflowClient(tracked.uri)
    expected: dict[str, dict[int, float]] = {}
    for entries in (tracked.batches, tracked.evaluations):
        for step, values in entries.items():
            for name, value in values.items():
                expected.setdefault(name, {})[step] = value
    for name, by_step in expected.items():
        history = sorted(client.get_metric_history(tracked.id("mlflow"), name), key=lambda metric: metric.timestamp)
        assert {metric.step: metric.value for metric in history if metric.step in by_step} == by_step, name
    branches = client.get_metric_history(tracked.id("mlflow"), "run/branch")
    assert sorted((metric.step, metric.value) for metric in branches) == [(1, 0), (2, 0), (3, 0), (3, 1), (4, 1)]
    rewards = sorted(
        client.get_metric_history(tracked.id("mlflow"), "reward/mean"), key=lambda m: (m.step, m.timestamp)
    )
    assert rewards[2].value == tracked.taken_back[3]["reward/mean"]
    assert round(rewards[0].timestamp / 1000) == pytest.approx(tracked.record.events[0].at, abs=120)


def test_config_summary_and_status(tracked: Tracked) -> None:
    client = tracking.MlflowClient(tracked.uri)
    experiment = client.get_experiment_by_name("e")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id == tracked.id("mlflow"), "one run for both processes"
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["trainer.batches"] == str(BATCHES)
    assert run.data.params["rollout.sampling.max_new_tokens"] == "8"
    assert run.data.metrics["summary/version"] == BATCHES
    assert run.data.metrics["summary/reward/last"] == tracked.summary["reward"]["last"]
    assert run.data.tags["status"] == "finished"
    assert run.data.metrics["reward/mean"] == tracked.batches[BATCHES]["reward/mean"], "the last step is the latest"


def test_samples_are_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    from headrace.config.track import MlflowTracker
    from headrace.observe.trackers.mlflow import MlflowRun
    from headrace.observe.trackers.protocol import TrackedRun

    monkeypatch.chdir(tmp_path)  # where it keeps files
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    tracker = MlflowRun(TrackedRun("run", "ab", tmp_path, {}, None), MlflowTracker(uri=uri))
    tracker.samples(7, 5.0, [{"prompt": "2+3=", "response": "<b>5</b>", "reward": 1.0}])
    tracker.close("finished", {})
    path = mlflow.artifacts.download_artifacts(run_id=tracker.id, artifact_path="samples/7.json", tracking_uri=uri)
    table = json.loads(Path(path).read_text())
    assert (table["columns"], table["data"]) == (["prompt", "response", "reward"], [["2+3=", "<b>5</b>", 1.0]])
