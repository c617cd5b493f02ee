"""What a resumed run may change: how it is told, what it does from that step on, and what is refused."""

import json
import os
import signal
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
import yaml
from controller_jobs import ALONE, make_job, start
from safetensors.torch import load_file

from headrace.cli.main import main
from headrace.store import RunReader


def train(job: Path, folder: Path, *more: str) -> int:
    return main(["train", str(job), "--dir", str(folder), "--plain", *more])


def on_policy(folder: Path, **changes: object) -> Path:
    settings = {"async__mode": "sync", "rollout__filters": [], "data__eval": None, "runtime__threads": 1, **changes}
    return make_job(folder, **{**ALONE, **settings})


def rates(folder: Path) -> list[float]:
    with RunReader(folder) as run:
        return [row.record["lr"] for row in run.metrics.read("batch")]


def trained(folder: Path) -> list[tuple[int, int, int]]:
    """(epoch, position, batch), after the law was checked."""
    with RunReader(folder) as run:
        run.counts().check()
    connection = sqlite3.connect(folder / "run.db")
    try:
        return connection.execute(
            "SELECT epoch, position, batch FROM attempts WHERE state = 'trained' ORDER BY epoch, position"
        ).fetchall()
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.copied
def test_a_finished_run_that_is_made_longer_is_the_longer_run(tmp_path: Path) -> None:
    """Its data goes on where it stood; on-policy, with a constant rate, to the same weights bit for bit."""
    job = on_policy(tmp_path / "job")
    assert train(job, tmp_path / "whole", "trainer.batches=4") == 0
    assert train(job, tmp_path / "run", "trainer.batches=2") == 0
    assert train(job, tmp_path / "run", "trainer.batches=4", "--resume") == 0
    assert trained(tmp_path / "run") == trained(tmp_path / "whole")
    weights = [load_file(tmp_path / run / "checkpoints" / "step_4" / "trainer.safetensors") for run in ("whole", "run")]
    assert all(torch.equal(weights[0][name], tensor) for name, tensor in weights[1].items())


@pytest.mark.slow
@pytest.mark.copied
def test_the_rate_is_the_new_configs_from_the_next_step_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps 0, 1, 2 of 3 fall from 1e-3 to 0; steps 3, 4, 5 are those of a fall from 2e-3 to 0 over 6."""
    job = on_policy(tmp_path / "job", trainer__batches=3, trainer__lr_schedule={"kind": "linear"})
    folder = tmp_path / "run"
    assert train(job, folder) == 0
    before = (folder / "config.yaml").read_text()
    capsys.readouterr()
    safe = ["trainer.batches=6", "trainer.optimizer.lr=2e-3", "checkpoint.every=7", "track=[csv]"]
    safe += ["engine.max_concurrent_sequences=4", "rollout.episode_timeout_s=50", "reward.timeout_s=9"]
    safe += [f"data.eval={tmp_path / 'job' / 'eval.jsonl'}", "evaluation.every=2"]
    assert train(job, folder, *safe, "--resume") == 0
    assert rates(folder) == pytest.approx([1e-3, 5e-4, 0, 2e-3 * 2 / 5, 2e-3 / 5, 0])

    told = [line for line in capsys.readouterr().err.splitlines() if "--resume" in line]
    changed = [
        f'data.eval: was null, now "{tmp_path}/job/eval.jsonl"',
        "reward.timeout_s: was 10.0, now 9.0",
        "rollout.episode_timeout_s: was 60.0, now 50.0",
        "trainer.batches: was 3, now 6",
        "trainer.optimizer.lr: was 0.001, now 0.002",
        "engine.max_concurrent_sequences: was 1, now 4",
        "checkpoint.every: was 2, now 7",
        "evaluation.every: was null, now 2",
        'track: was [], now ["csv"]',
    ]
    assert told == [f"headrace: note: --resume: {line}" for line in changed]
    with RunReader(folder) as run:
        (event,) = [event.data for event in run.events.read() if event.kind == "config_changed"]
        assert next(row.number for row in run.metrics.read("eval")) == 3, "evaluated from where it went on"
        assert run.config_yaml == (folder / "config.yaml").read_text() != before
        assert event == {"changed": "; ".join(changed), "before": before}
        assert json.loads((folder / "summary.json").read_text())["config_sha256"] == run.config_sha256
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["batches"] == 6
    assert main(["train", str(folder / "config.yaml"), "--dir", str(folder), "--resume"]) == 0, "its own again"


@pytest.mark.slow
@pytest.mark.copied
def test_more_epochs_train_every_prompt_though_the_last_batch_was_short(tmp_path: Path) -> None:
    job = on_policy(tmp_path / "job", trainer__batches=None, trainer__epochs=1)
    rows = (tmp_path / "job" / "train.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "job" / "train.jsonl").write_text("".join(rows[:5]))
    folder = tmp_path / "run"
    assert train(job, folder) == 0
    assert train(job, folder, "trainer.epochs=2", "--resume") == 0
    found = trained(folder)
    assert [(epoch, position) for epoch, position, _ in found] == [(e, p) for e in range(2) for p in range(5)]
    assert Counter(batch for _, _, batch in found) == {0: 2, 1: 2, 2: 1, 3: 2, 4: 2, 5: 1}


@pytest.mark.slow
@pytest.mark.copied
def test_a_change_that_is_not_safe_is_refused_by_key_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = on_policy(tmp_path / "job", trainer__batches=2, checkpoint__every=1)
    data = tmp_path / "job" / "train.jsonl"
    data.write_text("".join(data.read_text().splitlines(keepends=True)[:5]))
    folder = tmp_path / "run"
    assert train(job, folder) == 0
    before = (folder / "config.yaml").read_bytes()

    def refused(*more: str) -> list[str]:
        capsys.readouterr()
        assert train(job, folder, *more, "--resume") == 2
        return capsys.readouterr().err.splitlines()

    told = refused("async.mode=async", "async.max_staleness=3", "seed=3", "trainer.max_grad_norm=2", "reward.workers=2")
    assert told[0] == f"headrace: {folder} was made with another config"
    assert told[1:-1] == [
        '  - async.mode: was "sync", now "async" (groups that are live were promised a deadline by it)',
        "  - async.max_staleness: was null, now 3 (groups that are live were promised a deadline by it)",
        "  - trainer.max_grad_norm: was 1.0, now 2.0 (the batches so far were trained by it)",
        "  - seed: was 0, now 3 (the order of the prompts and the noise of every token follow from it)",
    ]
    assert refused("trainer.batches=1") == [
        f"headrace: trainer.batches is 1, and {folder} has trained 2 batches already: give 2 or more, or begin another "
        "run with --dir"
    ]
    with RunReader(folder) as run:
        assert run.status().name == "finished"
    assert (folder / "config.yaml").read_bytes() == before
    assert train(job, folder, "trainer.batches=6", "--resume") == 0  # 12 prompts: epoch 3 is begun
    (line,) = refused("trainer.batches=null", "trainer.epochs=2")
    assert "trainer.epochs is 2, and" in line
    assert "has begun epoch 3: give 3 or more" in line


@pytest.mark.slow
@pytest.mark.copied
def test_a_run_is_killed_made_longer_killed_again_and_loses_nothing(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", trainer__batches=4, rollout__sampling__max_new_tokens=16, data__eval=None)
    folder = tmp_path / "run"
    for reached, batches in ((2, 4), (6, 12)):
        process = start("train", job, "--dir", folder, f"trainer.batches={batches}", *(["--resume"] * (batches > 4)))
        while process.poll() is None:
            if (folder / "run.db").exists():
                with RunReader(folder) as run:
                    if (run.version() or (0, 0))[1] >= reached:
                        break
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert (
        train(job, folder, "trainer.batches=14", "async.ahead=2", "engine.max_concurrent_sequences=4", "--resume") == 0
    )
    found = trained(folder)
    assert len({(epoch, position) for epoch, position, _ in found}) == len(found) == 28
    assert sorted(Counter(batch for _, _, batch in found)) == list(range(14))
