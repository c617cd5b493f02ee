"""Reference, proximal policy and teacher in processes of their own: the same numbers, and an end that is told."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from controller_jobs import make_job

from headrace.cli.main import main
from headrace.roles.frozen import InWorker
from headrace.store import RunReader

KL = {"algorithm__kl__coefficient": 0.1}


def trained(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """The batches' records of a finished run in `sync`."""
    job = make_job(folder / "job", trainer__batches=3, async__mode="sync", runtime__threads=1, **changes)
    assert main(["train", str(job), "data.shuffle=false", "--dir", str(folder / "run"), "--plain"]) == 0
    with RunReader(folder / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        return [row.record for row in reader.metrics.read("batch")]


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize(
    "changes",
    [
        {**KL, "reference__placement": "process"},
        {
            **KL,
            "algorithm__recipe": "ppo",
            "algorithm__updates_per_batch": 2,
            "reference__placement": "process",
            "proximal__placement": "process",
        },
    ],
    ids=["grpo", "ppo"],
)
def test_a_run_is_the_same_wherever_its_scorers_are(tmp_path: Path, changes: dict[str, Any]) -> None:
    apart = trained(tmp_path / "apart", **changes)
    here = {key: "own" if key.endswith("placement") else value for key, value in changes.items()}
    together = trained(tmp_path / "together", **here)
    for one, other in zip(apart, together, strict=True):
        assert one["loss"] == other["loss"]
        assert one["grad_norm"] == other["grad_norm"]


@pytest.mark.slow
@pytest.mark.cpu
def test_a_reference_that_is_killed_ends_the_run_with_its_name_and_the_run_goes_on_when_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_job(tmp_path / "job", trainer__batches=4, **KL, reference__placement="process")
    scores, calls = InWorker.scores, []

    async def watched(model: InWorker, rows: Any) -> Any:
        calls.append(rows)
        if len(calls) == 2:
            (victim,) = (each for each in psutil.Process().children() if "reference/0" in " ".join(each.cmdline()))
            os.kill(victim.pid, signal.SIGKILL)
        return await scores(model, rows)

    monkeypatch.setattr(InWorker, "scores", watched)
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain"]) == 1
    assert "reference/0" in capsys.readouterr().err  # that it is lost, or that what it kept is
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain", "--resume"]) == 0
    with RunReader(tmp_path / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()


def test_what_a_process_cannot_do_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = make_job(tmp_path / "job", **KL, reference__placement="process", reference__refresh_every=2)
    assert main(["check", str(job)]) != 0
    assert "no newer policy reaches the reference, but refresh_every is 2; use own" in capsys.readouterr().err
