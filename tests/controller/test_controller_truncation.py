"""Whole runs under top-k and top-p: what the trainer computes agrees with what the engine sampled."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from controller_jobs import make_job, run, start

SAMPLING = {"max_new_tokens": 12, "temperature": 0.7, "top_p": 0.8, "top_k": 20}


def _batches(folder: Path) -> list[dict[str, object]]:
    code, out = run("inspect", folder, "--batches")
    assert code == 0, out
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm__kl": {"coefficient": 0.1}, "algorithm__updates_per_batch": 2},
        {"algorithm__kl": {"coefficient": 0.1}, "algorithm__updates_per_batch": 2, "proximal__placement": "own"},
        {"algorithm__recipe": "opd", "algorithm__entropy": 0.01},
    ],
    ids=["plain", "reference and hybrid proximal", "own proximal", "teacher and entropy bonus"],
)
def test_in_sync_the_trainers_logprobs_are_the_engines(tmp_path: Path, changes: dict[str, object]) -> None:
    if changes.get("algorithm__recipe") == "opd":
        changes = {**changes, "teacher__model": str(tmp_path / "model")}
    job = make_job(tmp_path, rollout__sampling=SAMPLING, async__mode="sync", trainer__batches=3, **changes)
    code, out = run("train", job, "--dir", tmp_path / "run")
    assert code == 0, out
    for batch in _batches(tmp_path / "run"):
        assert batch["mismatch_max_abs"] < 1e-5
        assert 0 < batch["kept_mass"] < 1
        assert batch["entropy"] > 0


def test_kept_sets_survive_a_kill(tmp_path: Path) -> None:
    job = make_job(tmp_path, rollout__sampling=SAMPLING, trainer__batches=60, checkpoint__every=5)
    process = start("train", job, "--dir", tmp_path / "run")
    end = time.monotonic() + 100
    while not list((tmp_path / "run" / "checkpoints").glob("step_5")):
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    process.kill()
    process.communicate()
    code, out = run("train", job, "--dir", tmp_path / "run", "--resume", "trainer.batches=60")
    assert code == 0, out
    assert all(batch["kept_mass"] is not None for batch in _batches(tmp_path / "run"))
