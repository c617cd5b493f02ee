"""What is recorded of a batch follows from what its steps report, and from its rows."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from headrace.controller.recorder import Recorder
from headrace.experience.sample import GroupKey
from headrace.observe.durations import Durations
from headrace.observe.listeners import Listeners
from headrace.observe.record import BatchRecord
from headrace.observe.tally import Tally
from headrace.observe.waits import WaitMeter
from headrace.roles.actors.batch_stats import BatchStats
from headrace.roles.actors.trained_step import TrainedStep
from headrace.training.gap import Gap
from headrace.training.protocol import StepReport

STEP = StepReport(
    loss=0.1,
    grad_norm=0.5,
    lr=1e-6,
    skipped=False,
    denominator=8.0,
    stats={},
    maxima={},
    forwarded_tokens=16,
    trained_tokens=8,
    padding_tokens=0,
)


def recorded(step: TrainedStep) -> BatchRecord:
    """What is told of `step` by a recorder whose run has done nothing else."""
    found: list[BatchRecord] = []
    nothing = SimpleNamespace(
        now=lambda: 0.0,
        wall=lambda: 0.0,
        write=lambda *what, **kind: None,
        record_version=lambda *what: None,
        stats=lambda: SimpleNamespace(generated_tokens=0, busy_s=0.0, swap_stall_s=0.0),
        drop_words={},
        ready_groups=0,
        running_groups=0,
        transaction=nullcontext,
        **dict.fromkeys(("trainer_s", "engines_s", "busy_s", "device_s"), dict),
        lent_s=lambda: 0.0,
    )
    nothing.checkpoints = nothing.metrics = nothing
    anything = cast(Any, nothing)
    recorder = Recorder(
        anything,
        anything,
        anything,
        anything,
        Tally(),
        WaitMeter(nothing.now),
        anything,
        Durations(),
        branch=0,
        listeners=Listeners(batch=found.append),
    )
    recorder.batch(step)
    return found[0]


def step(*reports: StepReport, stats: BatchStats | None = None, **fields: Any) -> TrainedStep:
    """Of one epoch."""
    counted = stats or BatchStats(samples=2, reward=1.0, last_rewards={GroupKey(0, 0, 0): {0: (0, 1.0), 1: (0, 0.0)}})
    return TrainedStep(0, 1, 0, {}, counted, (reports,), 0.0, **fields)


def test_the_gradient_of_a_batch_is_the_largest_of_its_steps() -> None:
    assert recorded(step(replace(STEP, grad_norm=2.0), STEP)).grad_norm == 2.0


def test_a_step_whose_gradient_is_nan_is_seen_behind_others() -> None:
    record = recorded(step(STEP, replace(STEP, grad_norm=math.nan, skipped=True), STEP))
    assert math.isnan(record.grad_norm)
    assert record.skipped


def test_a_log_prob_that_is_nan_is_seen_in_drift_and_mismatch() -> None:
    whole = replace(STEP, maxima={"drift_abs": 0.25, "mismatch_abs": 0.5}, stats={"mismatch_tokens": 1.0})
    broken = replace(whole, maxima=dict.fromkeys(whole.maxima, math.nan))
    record = recorded(step(whole, broken, begun=(whole, broken), gap=Gap(1, 0.5, 0.5)))
    assert math.isnan(record.drift_max_abs)
    assert record.mismatch_max_abs is not None
    assert math.isnan(record.mismatch_max_abs)


def test_the_kl_of_an_epochs_steps_is_told_where_each_of_them_tells_it() -> None:
    told = replace(STEP, stats={"step_kl": 2.0}), replace(STEP, stats={"step_kl": 4.0})
    assert recorded(step(*told)).epochs[0].step_kl == 0.375
    assert recorded(step(*told, STEP)).epochs[0].step_kl is None


def test_rewards_are_means_of_samples_and_of_episodes() -> None:
    """One right in one history, one wrong in four."""
    stats = BatchStats(samples=5)
    for episode, histories, reward in ((0, 1, 1.0), (1, 4, 0.0)):
        for index in range(histories):
            stats.count_reward(GroupKey(0, 0, 0), episode, index, reward)
    record = recorded(step(STEP, stats=stats))
    assert (record.reward_mean, record.episode_reward_mean) == (0.2, 0.5)
