"""Several ranks that train one model: the same step as one rank's, and an end that is told."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from controller_jobs import make_job
from safetensors.torch import load_file

from headrace.cli.main import main
from headrace.store import RunReader
from headrace.training.group import TrainerGroup

pytestmark = [pytest.mark.slow, pytest.mark.cpu]
AS_SGD = {
    "trainer__optimizer__betas": [0.0, 0.0],
    "trainer__optimizer__eps": 1e4,
    "trainer__optimizer__lr": 1e4,
    "trainer__max_grad_norm": 1e6,
}
"""AdamW divides by |g| + eps: with eps far above all gradients a step is lr / eps times the gradient."""


def trained(folder: Path, ranks: int, **changes: Any) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """The records of batches of a finished run in `sync`, and the weights that it ends with."""
    apart = {"trainer__placement": "process", "trainer__layout__dp": ranks}
    job = make_job(folder / "job", async__mode="sync", runtime__threads=1, **{**AS_SGD, **apart, **changes})
    assert main(["train", str(job), "data.shuffle=false", "--dir", str(folder / "run"), "--plain"]) == 0
    with RunReader(folder / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        records = [row.record for row in reader.metrics.read("batch")]
    (last,) = (folder / "run" / "checkpoints").glob("step_*")
    return records, load_file(last / "model" / "model.safetensors")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"trainer__max_tokens_per_microbatch": 24},
        {"algorithm__kl__coefficient": 0.1, "reference__placement": "hybrid"},
        {"algorithm__epochs_per_batch": 2, "algorithm__objective": "decoupled"},
    ],
    ids=["plain", "small micro-batches", "reference", "epochs"],
)
def test_ranks_step_as_one_does(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Loss, norm and weights of the first batch, whose rollouts are the same: to float32's rounding of sums."""
    (one, *_), weights = trained(tmp_path / "1", 1, trainer__batches=1, **changes)
    begun = load_file(tmp_path / "1" / "job" / "model" / "model.safetensors")
    moved = max(float((weights[name] - begun[name]).abs().max()) for name in begun)
    assert moved > 1e-4
    for ranks in (2, 3) if "trainer__max_tokens_per_microbatch" in changes else (2,):
        (other, *_), found = trained(tmp_path / str(ranks), ranks, trainer__batches=1, **changes)
        assert other["trained_tokens"] == one["trained_tokens"]
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-5, abs=1e-7)
        assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-6)
        assert other["entropy"] == pytest.approx(one["entropy"], rel=1e-6)
        assert found.keys() == weights.keys()
        apart = max(float((weights[name] - found[name]).abs().max()) for name in weights)
        assert apart <= 1e-6 * moved + 1e-7


def test_a_rank_that_is_killed_has_all_go_back_to_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the midst of its third step, in which the other waits for it."""
    step, steps = TrainerGroup.step, []

    async def watched(group: TrainerGroup) -> Any:
        steps.append(group.name)
        if len(steps) == 3:
            (victim,) = (each for each in psutil.Process().children() if "trainer/1" in " ".join(each.cmdline()))
            os.kill(victim.pid, signal.SIGKILL)
        return await step(group)

    monkeypatch.setattr(TrainerGroup, "step", watched)
    apart = {"trainer__placement": "process", "trainer__layout__dp": 2, "checkpoint__every": 2}
    job = make_job(tmp_path / "job", trainer__batches=4, **apart)
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain"]) == 0
    with RunReader(tmp_path / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        (lost,) = [event for event in reader.events.read() if event.kind == "trainer_lost"]
        assert "trainer/1" in lost.data["message"]
        assert [row.branch for row in reader.metrics.read("batch")] == [0, 0, 1, 1]
