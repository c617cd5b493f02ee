"""Runs of several ranks, some of which die."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from children import child
from controller_jobs import make_job
from safetensors.torch import load_file

from headrace.cli.main import main
from headrace.store import RunReader
from headrace.training.rank_workers import RankWorkers

Weights = dict[str, torch.Tensor]
AS_SGD = {
    "trainer__optimizer__betas": [0.0, 0.0],
    "trainer__optimizer__eps": 1e4,
    "trainer__optimizer__lr": 1e4,
    "trainer__max_grad_norm": 0.5,
}
"""AdamW divides by |g| + eps: with eps far above all gradients a step is lr / eps times the gradient, which is clipped
here."""


CRITIC = {
    "algorithm__recipe": "ppo",
    "critic__placement": "process",
    "critic__optimizer": {"betas": [0, 0], "eps": 1e4},
}


def trained(folder: Path, layout: object, *more: str, **changes: Any) -> tuple[list[dict[str, Any]], Weights]:
    """The records of batches of a finished run in `sync`, and the weights that it ends with."""
    apart = {"trainer__placement": "process", "trainer__layout": layout}
    job = make_job(folder / "job", async__mode="sync", runtime__threads=1, **{**AS_SGD, **apart, **changes})
    assert main(["train", str(job), "data.shuffle=false", "--dir", str(folder / "run"), "--plain", *more]) == 0
    with RunReader(folder / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        records = [row.record for row in reader.metrics.read("batch")]
    return records, load_file(last_checkpoint(folder) / "model" / "model.safetensors")


def last_checkpoint(folder: Path) -> Path:
    saved = (folder / "run" / "checkpoints").glob("step_*")
    return max(saved, key=lambda path: int(path.name.removeprefix("step_")))


Kills = Mapping[tuple[str, int], int]
"""By what the ranks are told, and how often it was told some before: the rank that dies of it."""


def kill_ranks(monkeypatch: pytest.MonkeyPatch, kills: Kills) -> list[tuple[str, int]]:
    """Those of this process's runs. Gives what was told, as it is."""
    outcomes, told = RankWorkers._outcomes, []

    async def watched(ranks: RankWorkers, method: str, *args: Any) -> Any:
        at = method, sum(method == before for before, _ in told)
        told.append(at)
        if (rank := kills.get(at)) is not None:
            victim = child(f"trainer/{rank}")
            os.kill(victim.pid, signal.SIGKILL)
        return await outcomes(ranks, method, *args)

    monkeypatch.setattr(RankWorkers, "_outcomes", watched)
    return told
