"""Reference, proximal policy and teacher in processes of their own: the same numbers, and an end that is told."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from children import child
from controller_jobs import ALONE, make_job, make_model
from safetensors.torch import load_file

from headrace.cli.main import main
from headrace.config import TrainConfig, load_config
from headrace.roles.columns.frozen import InRanks
from headrace.store import RunReader

KL = {"algorithm__kl__coefficient": 0.1}


def trained(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """The batches' records of a finished run in `sync`."""
    job = make_job(folder / "job", trainer__batches=3, async__mode="sync", runtime__threads=1, **ALONE, **changes)
    assert main(["train", str(job), "data.shuffle=false", "--dir", str(folder / "run"), "--plain"]) == 0
    with RunReader(folder / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        return [row.record for row in reader.metrics.read("batch")]


def trainers_state(folder: Path) -> dict[str, torch.Tensor]:
    """Master weights and moments, as the last checkpoint has them."""
    (path,) = (folder / "run" / "checkpoints").glob("step_3/trainer.safetensors")
    return load_file(path)


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({**KL, "reference__placement": "process"}, marks=pytest.mark.soak),
        {
            **KL,
            "algorithm__recipe": "ppo",
            "algorithm__updates_per_batch": 2,
            "reference__placement": "process",
            "proximal__placement": "process",
        },
        {"algorithm__recipe": "opd", "teacher__placement": "process"},
    ],
    ids=["grpo", "ppo", "opd"],
)
def test_a_run_is_the_same_wherever_its_scorers_are(tmp_path: Path, changes: dict[str, Any]) -> None:
    if "teacher__placement" in changes:
        changes = {**changes, "teacher__model": str(make_model(tmp_path / "teacher"))}
    apart = trained(tmp_path / "apart", **changes)
    here = {key: "own" if key.endswith("placement") else value for key, value in changes.items()}
    together = trained(tmp_path / "together", **here)
    for one, other in zip(apart, together, strict=True):
        assert one["loss"] == other["loss"]
        assert one["grad_norm"] == other["grad_norm"]
    of_one, of_other = trainers_state(tmp_path / "apart"), trainers_state(tmp_path / "together")
    assert of_one.keys() == of_other.keys()
    assert any(name.startswith("master.") for name in of_one)
    assert [name for name in of_one if not torch.equal(of_one[name], of_other[name])] == []


@pytest.mark.slow
@pytest.mark.cpu
def test_scorers_that_are_killed_come_back_in_their_place_and_change_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that never changes, and two ranks that have to take the policy's version again: in the second batch, and what
    was kept of the group before is computed again."""
    changes = {
        **KL,
        "algorithm__recipe": "ppo",
        "algorithm__updates_per_batch": 2,
        "reference__placement": "process",
        "proximal__placement": "process",
        "proximal__layout": "t2",
    }
    whole = trained(tmp_path / "whole", **changes)
    scores, calls = InRanks.scores, Counter[str]()

    async def watched(model: InRanks, rows: Any) -> Any:
        calls[model.name] += 1
        if calls[model.name] == 4:
            victim = child(f"{model.name}/0")
            os.kill(victim.pid, signal.SIGKILL)
        return await scores(model, rows)

    monkeypatch.setattr(InRanks, "scores", watched)
    killed = trained(tmp_path / "killed", **changes)
    for one, other in zip(whole, killed, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-4, abs=1e-6)  # what is decoded together differs
        assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)
    with RunReader(tmp_path / "killed" / "run") as reader:
        events = [event for event in reader.events.read() if event.kind == "worker_lost"]
        assert sorted(event.data["worker"] for event in events) == ["proximal/0", "proximal/1", "reference/0"]


def test_what_a_process_cannot_do_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = make_job(tmp_path / "job", **KL, reference__placement="process", reference__refresh_every=2)
    assert main(["check", str(job)]) != 0
    told = "reference.refresh_every is 2, and reference.placement process, where no newer policy reaches it; use own or"
    assert told in capsys.readouterr().err


def test_check_tells_who_has_a_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = make_job(tmp_path / "job", **KL, reference__placement="process")
    assert main(["check", str(job)]) == 0
    roles = capsys.readouterr().out.partition("roles ")[2]
    lines = [line for line in roles.splitlines() if line.strip().startswith("reference ")]
    assert "process of its own" in lines[0]


def test_a_run_that_scores_nothing_sets_no_processor_aside(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", **KL, reference__placement="process")
    assert load_config(TrainConfig, job).scorer_processes == ("reference",)
    assert load_config(TrainConfig, job, ["rollouts_only=true"]).scorer_processes == ()


@pytest.mark.slow
@pytest.mark.cpu
def test_ranks_that_score_together_come_back_and_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have all of it each alone, those that have a part with the others; rows are scored again."""
    changes = {**KL, "reference__max_tokens_per_microbatch": 24}
    one = trained(tmp_path / "one", **changes)
    scores, calls = InRanks.scores, Counter[Path]()
    for layout, lost in (("d2", ["reference/1"]), ("t2", ["reference/0", "reference/1"])):
        folder = tmp_path / layout

        async def watched(model: InRanks, rows: Any, folder: Path = folder) -> Any:
            calls[folder] += 1
            if calls[folder] == 3:
                victim = child("reference/1")
                os.kill(victim.pid, signal.SIGKILL)
            return await scores(model, rows)

        monkeypatch.setattr(InRanks, "scores", watched)
        killed = trained(folder, **changes, reference__placement="process", reference__layout=layout)
        for of_one, of_two in zip(one, killed, strict=True):
            assert of_two["loss"] == pytest.approx(of_one["loss"], rel=1e-4, abs=1e-6)
            assert of_two["grad_norm"] == pytest.approx(of_one["grad_norm"], rel=1e-4)
        with RunReader(folder / "run") as reader:
            events = [event for event in reader.events.read() if event.kind == "worker_lost"]
        assert sorted(event.data["worker"] for event in events) == lost


def test_check_tells_the_ranks_of_a_scorer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = make_job(tmp_path / "job", **KL, reference__placement="process", reference__layout="d2t2")
    assert main(["check", str(job), "model.device=cpu", "model.dtype=bfloat16"]) == 0
    told = capsys.readouterr().out
    assert "4 rank(s) (d2t2, ZeRO-3), each in a process of its own" in told
    assert "reference: weights gathered for a pass" in told
