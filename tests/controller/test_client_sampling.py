"""Whole runs of agents that sample each turn in another way: the trainer computes each token as it was sampled."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from agent_runs import make_sampling_job, samples_of
from controller_jobs import run, start
from safetensors.torch import load_file

from headrace.cli.main import main
from headrace.experience.records.rollout_codec import decode_detail
from headrace.observe.record import BatchRecord
from headrace.observe.run_record import RunWatcher
from headrace.store import RunReader
from headrace.store.rollouts import Query, RolloutsReader


def train(job: Path, folder: Path, *more: str) -> tuple[BatchRecord, ...]:
    assert main(["train", str(job), "--dir", str(folder), "--plain", *more]) == 0
    return batches(folder)


def batches(folder: Path) -> tuple[BatchRecord, ...]:
    with RunReader(folder) as reader:
        reader.counts().check()
        return tuple(RunWatcher(reader).read().batches)


def weights(folder: Path, number: int) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"step_{number}" / "trainer.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm__kl": {"coefficient": 0.1}, "algorithm__updates_per_batch": 2, "proximal__placement": "own"},
        {"algorithm__recipe": "ppo", "trainer__placement": "process"},
    ],
    ids=["plain", "reference and proximal", "critic, and a trainer in a process"],
)
def test_in_sync_the_trainers_logprobs_are_the_engines(tmp_path: Path, changes: dict[str, object]) -> None:
    job = make_sampling_job(
        tmp_path / "job", "samples_in_three_ways", async__mode="sync", record__rollouts="all", **changes
    )
    for batch in train(job, tmp_path / "run"):
        assert batch.mismatch_max_abs is not None
        assert batch.mismatch_max_abs < 1e-5
        assert batch.kept_mass is not None
        assert 0 < batch.kept_mass < 1
    found = samples_of(tmp_path / "run")
    for sample in found:
        assert sample.temperatures is not None
        at = sample.temperatures[sample.loss_mask]
        assert set(at.tolist()) <= {float(np.float32(0.6)), 1.5}
        if sample.kept is not None:
            cut = sample.kept.counts[sample.loss_mask] > 0
            assert np.array_equal(cut, at < 1)
    assert any(len(set(sample.temperatures[sample.loss_mask].tolist())) == 2 for sample in found), "in one row"
    last = [sample for sample in found if sample.metadata.get("requests")]
    assert {sample.metadata["greedy"] for sample in last} == {1}
    with RolloutsReader(tmp_path / "run") as reader:
        kept = [decode_detail(each.data) for each in reader.read(Query())]
    assert kept
    for detail in kept:
        assert detail.temperatures is not None
        assert np.array_equal(detail.temperatures > 0, detail.loss_mask)
        assert detail.trained is None or not (detail.trained & (detail.temperatures == 0)).any()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["grpo", "opd"])
def test_whoever_is_the_policy_agrees_with_it_at_each_temperature(tmp_path: Path, recipe: str) -> None:
    """In the first batch a reference, or a teacher, that is the same model is at a KL of 0; by k1, whose terms keep
    their sign, one at another temperature would be 0.1 away and more."""
    distils = recipe == "opd"
    changes = {"teacher__model": str(tmp_path / "job" / "model")} if distils else {}
    changes |= {} if distils else {"algorithm__kl": {"coefficient": 0.1, "estimator": "k1"}}
    settings = {"algorithm__recipe": recipe, "async__mode": "sync", "trainer__batches": 1, **changes}
    job = make_sampling_job(tmp_path / "job", "samples_in_three_ways", **settings)
    (batch,) = train(job, tmp_path / "run")
    if distils:
        assert abs(batch.loss) < 1e-5
        assert batch.grad_norm < 1e-4
    else:
        assert batch.reference_kl == pytest.approx(0, abs=1e-5)


@pytest.mark.slow
def test_an_episode_that_is_greedy_throughout_is_compared_with_and_not_trained(tmp_path: Path) -> None:
    """Its reward is 1 and that of the others 0, so they are below the mean of their group."""
    job = make_sampling_job(
        tmp_path / "job", "all_greedy", async__mode="sync", record__rollouts="all", trainer__batches=2
    )
    for batch in train(job, tmp_path / "run"):
        assert batch.reward_mean == pytest.approx(1 / 3)
        assert batch.samples == 6
    with RolloutsReader(tmp_path / "run") as reader:
        found = reader.read(Query())
    for rollout in found:
        detail = decode_detail(rollout.data)
        assert detail.trained is not None
        assert detail.trained.any() == (rollout.reward == 0)
        assert rollout.advantage is None or rollout.advantage < 0


@pytest.mark.slow
def test_a_record_is_trained_on_again_bit_for_bit(tmp_path: Path) -> None:
    """Each group is read from the journal: without temperatures its log-probs would be others."""
    job = make_sampling_job(tmp_path / "job", "samples_in_three_ways", async__mode="sync", checkpoint__every=1)
    train(job, tmp_path / "run")
    again = train(tmp_path / "run" / "config.yaml", tmp_path / "again", f"data.rollouts={tmp_path / 'run'}")
    assert all(batch.drift_max_abs < 1e-5 for batch in again[:1])
    one, other = weights(tmp_path / "run", 3), weights(tmp_path / "again", 3)
    assert all(torch.equal(one[name], tensor) for name, tensor in other.items())
    changed = ["train", str(tmp_path / "run" / "config.yaml"), f"data.rollouts={tmp_path / 'run'}"]
    assert main([*changed, "--dir", str(tmp_path / "other"), "gateway.sampling=run"]) != 0


@pytest.mark.slow
def test_temperatures_survive_a_kill(tmp_path: Path) -> None:
    """At 1.5 a log-prob that is taken for one at temperature 1 is some 0.1 away and more."""
    changes = {"trainer__optimizer__lr": 1e-6, "trainer__batches": 40, "checkpoint__every": 5}
    job = make_sampling_job(tmp_path / "job", "samples_in_three_ways", **changes)
    process = start("train", job, "--dir", tmp_path / "run")
    end = time.monotonic() + 200
    while not list((tmp_path / "run" / "checkpoints").glob("step_5")):
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    process.kill()
    process.communicate()
    code, out = run("train", job, "--dir", tmp_path / "run", "--resume", timeout=200)
    assert code == 0, out
    assert all(batch.drift_max_abs < 0.01 for batch in batches(tmp_path / "run"))
