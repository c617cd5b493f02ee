"""Several epochs over a batch in whole runs: how many steps there are, when they end, and what is recorded of them."""

import asyncio
import json
from pathlib import Path

import pytest
from controller_jobs import make_job
from controller_notes import note_kl, noted_kl

from headrace.config import TrainConfig, load_config
from headrace.controller.planning.describe import describe_plan
from headrace.controller.planning.plan import make_plan
from headrace.controller.train import Ended, train
from headrace.training.optimizer.lr_schedule import learning_rate

BATCHES, EPOCHS = 3, 3
PPO = {"recipe": "ppo", "epochs_per_batch": EPOCHS, "updates_per_batch": 2}


def run(folder: Path, **changes: object) -> Ended:
    settings = {
        "trainer__batches": BATCHES,
        "rollout__filters": [],
        "data__eval": None,
        "async__mode": "sync",
        "runtime__threads": 1,
    }
    job = make_job(folder, **{**settings, **changes})
    return asyncio.run(train(make_plan(load_config(TrainConfig, job)), folder / "run", "new"))


def steps_made(folder: Path) -> tuple[int, int]:
    """Of actor and critic, by their last checkpoint."""
    checkpoint = folder / "run" / "checkpoints" / f"step_{BATCHES}"
    records = [json.loads((checkpoint / part / "trainer.json").read_text()) for part in (".", "critic")]
    return records[0]["step_count"], records[1]["step_count"]


def test_actor_and_critic_make_their_updates_in_each_epoch(tmp_path: Path) -> None:
    schedule = {"kind": "linear", "min_ratio": 0.1, "warmup_steps": 4}
    ended = run(
        tmp_path, algorithm=PPO, critic={"updates_per_batch": 3, "lr_schedule": schedule}, trainer__lr_schedule=schedule
    )
    assert steps_made(tmp_path) == (BATCHES * EPOCHS * 2, BATCHES * EPOCHS * 3)
    settings = ended.record.config.trainer
    for number, batch in enumerate(ended.record.batches):
        last = (number + 1) * EPOCHS * 2 - 1
        planned = learning_rate(last, BATCHES * EPOCHS * 2, settings.optimizer.lr, settings.lr_schedule)
        assert batch.lr == pytest.approx(planned), "the schedule counts optimiser steps"
        assert [epoch.steps for epoch in batch.epochs] == [2] * EPOCHS
    assert ended.record.batches[-1].lr == pytest.approx(0.1 * settings.optimizer.lr)


def test_each_epoch_has_its_kl_and_its_clip_share(tmp_path: Path) -> None:
    ended = run(tmp_path, algorithm={"epochs_per_batch": 4}, trainer__optimizer__lr=1e-2)
    for batch in ended.record.batches:
        first, *later = batch.epochs
        assert first.step_kl == pytest.approx(0, abs=1e-9), "its one step comes after its pass"
        assert first.clip_fraction == 0
        assert [epoch.steps for epoch in batch.epochs] == [1] * 4
        assert all(epoch.step_kl > 1e-4 for epoch in later)
        assert max(epoch.clip_fraction for epoch in later) > 0
        assert batch.approx_kl == pytest.approx(sum(epoch.approx_kl for epoch in batch.epochs) / 4)
        assert batch.clip_fraction == pytest.approx(sum(epoch.clip_fraction for epoch in batch.epochs) / 4)
        assert batch.approx_kl == pytest.approx(sum(epoch.step_kl for epoch in batch.epochs) / 4, rel=1e-3), "fresh"
        assert batch.trained_tokens == sum(batch.staleness.values()), "a token counts once"


@pytest.mark.slow
@pytest.mark.copied
def test_a_kl_that_is_too_large_ends_the_actors_epochs_and_not_the_critics(tmp_path: Path) -> None:
    ended = run(tmp_path, algorithm={**PPO, "stop_kl": 1e-9}, trainer__optimizer__lr=1e-2)
    assert [len(batch.epochs) for batch in ended.record.batches] == [1] * BATCHES
    assert all(batch.epochs[0].step_kl > 1e-9 for batch in ended.record.batches)
    assert steps_made(tmp_path) == (BATCHES * 2, BATCHES * EPOCHS)
    ended = run(tmp_path / "far", algorithm={**PPO, "stop_kl": 1e9}, trainer__optimizer__lr=1e-2)
    assert [len(batch.epochs) for batch in ended.record.batches] == [EPOCHS] * BATCHES


def test_the_kls_controller_sees_each_sample_once(tmp_path: Path) -> None:
    """As the first epoch sees it: in the first batch the policy is the reference."""
    kl = {"coefficient": 0.1, "controller": note_kl(tmp_path)}
    ended = run(tmp_path, algorithm={"epochs_per_batch": 2, "kl": kl}, trainer__optimizer__lr=1e-2)
    seen = noted_kl(tmp_path)
    assert [samples for _, samples in seen] == [6] * BATCHES
    assert seen[0][0] == pytest.approx(0, abs=1e-6)
    assert ended.record.batches[0].reference_kl > 1e-4  # type: ignore[operator]
    assert seen[1][0] > 1e-3


def test_a_warm_up_batch_has_no_epochs_of_the_actor(tmp_path: Path) -> None:
    ended = run(tmp_path, algorithm=PPO, critic={"warmup_batches": 1})
    assert [len(batch.epochs) for batch in ended.record.batches] == [0, EPOCHS, EPOCHS]
    assert [batch.warm_up for batch in ended.record.batches] == [True, False, False]
    assert steps_made(tmp_path) == ((BATCHES - 1) * EPOCHS * 2, BATCHES * EPOCHS)


def test_check_says_how_many_steps_a_batch_has(tmp_path: Path) -> None:
    job = make_job(tmp_path, algorithm={**PPO, "stop_kl": 0.02})
    words = describe_plan(make_plan(load_config(TrainConfig, job)))
    assert "6 optimiser step(s) in 3 epochs (fewer after a KL above 0.02) each" in words
    assert "no: advantages, critic.update, actor wait for the whole batch" in words
