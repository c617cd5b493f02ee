"""Whole runs under top-k and top-p: what the trainer computes agrees with what the engine sampled."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from controller_jobs import make_job, run, start

from headrace.algorithms.kept_sets import KeptSets
from headrace.cli.main import main
from headrace.controller.building import groundwork
from headrace.experience.sample import GroupKey
from headrace.experience.table import ExperienceTable, Lease
from headrace.observe.record import BatchRecord
from headrace.observe.run_record import RunWatcher
from headrace.store import RunReader

SAMPLING = {"max_new_tokens": 12, "temperature": 0.7, "top_p": 0.8, "top_k": 20}


def batches(folder: Path) -> tuple[BatchRecord, ...]:
    with RunReader(folder) as reader:
        return tuple(RunWatcher(reader).read().batches)


def train(job: Path, folder: Path) -> tuple[BatchRecord, ...]:
    assert main(["train", str(job), "--dir", str(folder), "--plain"]) == 0
    return batches(folder)


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
    for batch in train(job, tmp_path / "run"):
        assert batch.mismatch_max_abs is not None
        assert batch.mismatch_max_abs < 1e-5
        assert batch.kept_mass is not None
        assert 0 < batch.kept_mass < 1
        assert batch.entropy is not None
        assert batch.entropy > 0


@pytest.mark.parametrize("mode", ["async", "one_step_off"])
def test_a_table_without_bytes_for_more_than_a_batch_holds_no_more_and_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    fullest: list[tuple[int, int]] = []

    class Watched(ExperienceTable):
        def __init__(self, *args: Any, group_bytes: int, **settings: Any) -> None:
            super().__init__(*args, group_bytes=group_bytes, **settings)
            self.largest = group_bytes

        def reserve(self, key: GroupKey, *, beyond_capacity: bool = False) -> None:
            super().reserve(key, beyond_capacity=beyond_capacity)
            fullest.append((self.nbytes, self.largest))

        def ack(self, *leases: Lease) -> None:
            fullest.append((self.nbytes, self.largest))
            columns = [value for lease in leases for row in lease.rows for value in row.columns.values()]
            arrays = sum(value.nbytes for value in columns if isinstance(value, np.ndarray | KeptSets))
            assert arrays <= self.nbytes, "what stages wrote is counted"
            super().ack(*leases)

    monkeypatch.setattr(groundwork, "ExperienceTable", Watched)
    job = make_job(
        tmp_path,
        rollout__sampling=SAMPLING,
        async__mode=mode,
        async__table_gib=1e-9,
        algorithm__kl={"coefficient": 0.1},
    )
    ended = train(job, tmp_path / "run")
    assert [batch.groups for batch in ended] == [2] * 6
    assert all(batch.kept_mass is not None for batch in ended)
    assert all(nbytes <= 2 * largest for nbytes, largest in fullest)


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm__kl": {"coefficient": 0.1, "estimator": "k1"}},
        {"algorithm__kl": {"coefficient": 0.1, "estimator": "k1"}, "reference__placement": "hybrid"},
        {"algorithm__recipe": "opd"},
    ],
    ids=["reference", "hybrid reference", "teacher"],
)
def test_whoever_is_the_policy_agrees_with_it(tmp_path: Path, changes: dict[str, object]) -> None:
    """In the first batch a reference, or a teacher, that is the same model is at a KL of 0: it is cut to the same sets.
    By k1, whose terms keep their sign, a model of the whole vocabulary would be 0.2 away."""
    distils = "algorithm__recipe" in changes
    if distils:
        changes = {**changes, "teacher__model": str(tmp_path / "model")}
    job = make_job(tmp_path, rollout__sampling=SAMPLING, async__mode="sync", trainer__batches=1, **changes)
    (batch,) = train(job, tmp_path / "run")
    assert batch.kept_mass is not None
    assert batch.kept_mass < 0.95
    if distils:
        assert abs(batch.loss) < 1e-5, "the teacher finds no token likelier than the policy does"
        assert batch.grad_norm < 1e-4
    else:
        assert batch.reference_kl == pytest.approx(0, abs=1e-5)


@pytest.mark.slow
@pytest.mark.copied
def test_kept_sets_survive_a_kill(tmp_path: Path) -> None:
    """A group without its sets would show a drift of -log(kept mass), about 0.2."""
    changes = {"trainer__optimizer__lr": 1e-6, "trainer__batches": 60, "checkpoint__every": 5}
    job = make_job(tmp_path, rollout__sampling=SAMPLING, **changes)
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
    for batch in batches(tmp_path / "run"):
        assert batch.kept_mass is not None
        assert 0 < batch.kept_mass < 1
        assert batch.drift_max_abs < 0.01
