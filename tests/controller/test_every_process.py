"""Whole runs with every kind of worker in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from controller_jobs import make_job, make_reward_model
from judge_models import ASKED, make_judge
from rollout_worker_code import SOURCE

from headrace.cli.main import main
from headrace.store import RunReader

pytestmark = [pytest.mark.slow, pytest.mark.cpu]

EVERY: dict[str, Any] = {
    "trainer__placement": "process",
    "engine__process": True,
    "functions__placement": "process",
    "rollout__workers": 1,
    "algorithm__kl__coefficient": 0.1,
    "algorithm__kl__place": "reward",  # so that advantages are of tokens
    "reference__placement": "process",
}
WORKERS = ("trainer/0", "engine/0", "functions/0", "rollout/0", "reference/0")
PPO = {
    "algorithm__recipe": "ppo",
    "algorithm__updates_per_batch": 2,
    "critic__placement": "process",
    "proximal__placement": "process",
}
STAGES = """
import os

def bonus(tokens, loss_mask):
    return {"bonus": loss_mask * 1.0}

def loss(logprobs, proximal, advantages, mask, sample_index, bonus):
    from headrace.algorithms.losses import Loss
    return Loss(-(advantages + 0.1 * bonus) * logprobs * mask, {})
"""


def train(job: Path, folder: Path, *arguments: str) -> None:
    assert main(["train", str(job), *arguments, "--dir", str(folder), "--plain"]) == 0


def finished(folder: Path, *workers: str, batches: int = 4) -> set[str]:
    """The run has finished, the law holds in it, and these workers had processes. Returns who was busy in it."""
    with RunReader(folder) as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        assert len({row.number for row in reader.metrics.read("batch")}) == batches
        lost = [event.data for event in reader.events.read() if event.kind.endswith(("_lost", "_failed"))]
        assert lost == []
    logs = {path.stem for path in (folder / "logs").glob("*-[0-9].log")}
    assert logs == {worker.replace("/", "-") for worker in workers}
    busy = json.loads((folder / "summary.json").read_text())["time"]["busy"]
    assert all(0 < share <= 1 for share in busy.values()), busy
    return {*busy}


def test_ppo_with_critic_and_reference_and_two_engines_begun_and_resumed(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", **EVERY, **PPO, engine__replicas=2)
    train(job, tmp_path / "run", "trainer.batches=2")
    train(job, tmp_path / "run", "trainer.batches=4", "--resume")
    busy = finished(tmp_path / "run", *WORKERS, "critic/0", "proximal/0", "engine/1")
    assert busy == {"engine 0", "engine 1", "trainer", "critic", "reference", "proximal"}


def test_functions_of_the_users_own_and_a_reward_model(tmp_path: Path) -> None:
    make_reward_model(tmp_path / "rm")
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "stages.py").write_text(STAGES)
    stage = {"name": "bonus", "function": f"{tmp_path}/stages.py:bonus", "reads": ["tokens", "loss_mask"]}
    job = make_job(
        tmp_path / "job",
        trainer__batches=4,
        **EVERY,
        rollout__workflow=f"{tmp_path}/mine.py:Mine",
        rollout__filters=[f"{tmp_path}/mine.py:keep"],
        algorithm__loss=f"{tmp_path}/stages.py:loss",
        algorithm__loss_reads=["bonus"],
        algorithm__stages=[{**stage, "writes": ["bonus"]}],
        reward__model={"path": str(tmp_path / "rm"), "placement": "process"},
    )
    train(job, tmp_path / "run")
    assert "reward" in finished(tmp_path / "run", *WORKERS, "reward/0")


def test_a_judge_beside_the_policy(tmp_path: Path) -> None:
    judge = {**ASKED, "model": str(make_judge(tmp_path / "judge", says_digits=True))}
    job = make_job(tmp_path / "job", trainer__batches=4, **EVERY, reward={"function": "judge", "judge": judge})
    train(job, tmp_path / "run")
    assert f"the engine of judge {tmp_path}/judge" in finished(tmp_path / "run", *WORKERS, "judge/0")


def test_grpo_and_evaluation(tmp_path: Path) -> None:
    job = make_job(
        tmp_path / "job",
        trainer__batches=4,
        **EVERY,
        evaluation__every=2,
        evaluation__samples=2,
        evaluation__temperature=1.0,
    )
    train(job, tmp_path / "run")
    finished(tmp_path / "run", *WORKERS)
    with RunReader(tmp_path / "run") as reader:
        evaluations = reader.metrics.read("eval")
        assert [row.number for row in evaluations] == [0, 2, 4]
        assert all(not row.record["failed"] for row in evaluations)
