"""A run that only records: its batches, its record, and that later runs train on it."""

import json
import os
import signal
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest
from controller_jobs import make_job, start

from headrace.cli.main import main
from headrace.config import TrainConfig, load_config
from headrace.controller.planning.plan import make_plan
from headrace.store import RunReader


def train(job: Path, folder: Path, *more: str) -> int:
    return main(["train", str(job), "--dir", str(folder), "--plain", *more])


def groups(folder: Path) -> dict[tuple[int, int, int], tuple[str, int | None]]:
    """State and batch of each attempt, after the law was checked."""
    with RunReader(folder) as run:
        run.counts().check()
    connection = sqlite3.connect(folder / "run.db")
    try:
        rows = connection.execute("SELECT epoch, position, attempt, state, batch FROM attempts").fetchall()
        return {(epoch, position, attempt): (state, batch) for epoch, position, attempt, state, batch in rows}
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.copied
def test_it_records_batches_of_version_0_and_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, folder = make_job(tmp_path / "job", trainer__batches=5), tmp_path / "run"
    assert train(job, folder, "--rollouts-only") == 0
    out, err = capsys.readouterr()
    assert "finished: 5 batches recorded after" in out
    assert f"train on them with data.rollouts={folder}" in out
    assert "policy unchanged: recorded only" in out
    assert "data.eval has no effect: rollouts_only is true" in err
    assert not list((folder / "checkpoints").iterdir())
    with RunReader(folder) as run:
        records = [row.record for row in run.metrics.read("batch")]
        assert run.metrics.read("eval") == []
        journalled = list(run.journalled())
    assert [record["groups"] for record in records] == [2] * 5
    assert all(record["only_recorded"] and record["trained_tokens"] == 0 for record in records)
    states = groups(folder)
    assert Counter(batch for state, batch in states.values() if state == "trained") == dict.fromkeys(range(5), 2)
    assert len(journalled) == len(states), "dropped ones too"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["time"]["trainer_s"] == {}
    assert summary["staleness"] == {"max": None, "mean": None, "histogram": {}}
    capsys.readouterr()
    assert main(["rollouts", str(folder), "--batch", "4", "--json"]) == 0
    kept = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(one["batch"], *set(filter(lambda v: v >= 0, one["versions"]))) for one in kept} == {(4, 0)}
    assert main(["inspect", str(folder)]) == 0
    assert "on disk, all that was finished" in capsys.readouterr().out

    assert train(job, tmp_path / "trained", f"data.rollouts={folder}", "data.eval=null") == 0
    with RunReader(tmp_path / "trained") as run:
        found = [row.record for row in run.metrics.read("batch")]
    assert [record["reward_mean"] for record in found] == pytest.approx([record["reward_mean"] for record in records])
    assert [list(record["staleness"]) for record in found] == [[str(batch)] for batch in range(5)], "steps since"
    assert found[0]["drift_mean_abs"] < 1e-5, "from the model that sampled them"


@pytest.mark.slow
@pytest.mark.copied
def test_a_run_that_trains_and_one_that_records_are_not_continued_as_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, folder = make_job(tmp_path / "job", trainer__batches=2, data__eval=None), tmp_path / "run"
    assert train(job, folder, "--rollouts-only") == 0
    assert train(job, folder, "trainer.batches=4", "--resume") == 2
    assert "rollouts_only: was true, now false (a run either trains or only records)" in capsys.readouterr().err
    assert train(job, folder, "trainer.batches=4", "--rollouts-only", "--resume") == 0
    assert sorted(Counter(batch for state, batch in groups(folder).values() if state == "trained")) == [0, 1, 2, 3]
    for wrong in (["rollout.oversample=1.5"], [f"data.rollouts={folder}"]):
        assert train(job, tmp_path / "new", *wrong, "--rollouts-only") == 2
        assert "rollouts_only is true, and" in capsys.readouterr().err
    assert train(job, tmp_path / "new", "--from", str(folder)) == 2
    assert "has no checkpoint with weights yet" in capsys.readouterr().err


@pytest.mark.cpu
def test_no_memory_is_counted_for_a_trainer(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", algorithm={"recipe": "ppo"})
    plan = make_plan(load_config(TrainConfig, job, ["rollouts_only=true"]))
    assert sorted(plan.memory.uses) == ["engine: KV cache", "engine: weights", "weight plane: version 0, on the host"]
    assert [stage.name for stage in plan.recipe.stages] == ["rollout", "filter", "schedule", "record"]


@pytest.mark.slow
@pytest.mark.copied
def test_a_kill_loses_and_doubles_nothing(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", trainer__batches=30, data__eval=None, rollout__sampling__max_new_tokens=24)
    folder = tmp_path / "run"
    begin: list[str] = []
    recorded: dict[tuple[int, int, int], tuple[str, int | None]] = {}
    for reached in (4, 9):
        process = start("train", job, "--dir", folder, "--rollouts-only", *begin)
        begin = ["--resume"]
        while process.poll() is None:
            if (folder / "run.db").exists():
                with RunReader(folder) as run:
                    if run.committed() >= reached:
                        break
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        states = groups(folder)
        assert recorded.items() <= states.items(), "what was recorded stays"
        with RunReader(folder) as run:
            done = run.committed()
        recorded = {key: (state, batch) for key, (state, batch) in states.items() if batch is not None and batch < done}
        assert len(recorded) == 2 * done
    assert train(job, folder, "--rollouts-only", "--resume") == 0
    states = groups(folder)
    assert recorded.items() <= states.items()
    assert Counter(batch for _, batch in states.values() if batch is not None) == dict.fromkeys(range(30), 2)
    prompts = Counter((epoch, position) for (epoch, position, _), (state, _) in states.items() if state == "trained")
    assert set(prompts.values()) == {1}
    assert {(epoch, position) for epoch, position, _ in states} == {
        divmod(i, 40) for i in range(len(prompts) + sum(state == "dropped" for state, _ in states.values()))
    }
    assert train(job, tmp_path / "trained", f"data.rollouts={folder}", "trainer.batches=2") == 0
