"""Records of invented runs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from headrace.config.data import DataConfig
from headrace.config.model import ModelConfig
from headrace.config.train import TrainConfig
from headrace.observe.record import BatchRecord, Totals
from headrace.observe.run_record import Evaluation, RunRecord
from headrace.store import Counts


def config(**options: Any) -> TrainConfig:
    return TrainConfig.model_validate(
        {"model": ModelConfig(path="m"), "data": DataConfig(train="t.jsonl"), "seed": 7, **options}
    )


def batch(number: int, **changes: Any) -> BatchRecord:
    """Batch `number` of a run that takes one second for each: 100 tokens generated, 80 trained."""
    record = BatchRecord(
        batch=number,
        branch=0,
        groups=4,
        samples=16,
        reward_mean=0.25,
        response_tokens_mean=5.0,
        trained_tokens=80,
        forwarded_tokens=120,
        padding_tokens=0,
        masked_tokens=0,
        lost_branch_tokens=0,
        late_groups=0,
        staleness={0: 60, 1: 20},
        loss=0.01,
        grad_norm=0.5,
        lr=1e-4,
        skipped=False,
        drift_mean_abs=0.002,
        drift_max_abs=0.3,
        clip_fraction=0.01,
        behavior_weight_mean=1.0,
        approx_kl=0.001,
        step_s=1.0,
        queue_groups=2,
        running_groups=4,
        totals=totals(number + 1),
    )
    return replace(record, **changes)


def totals(seconds: float, **changes: Any) -> Totals:
    """Of a process that ran for so long: 100 tokens and 20 samples a second."""
    made = Totals(
        elapsed_s=seconds,
        generated_tokens=round(100 * seconds),
        generated_samples=round(20 * seconds),
        failed_samples={"timeout": 1},
        generate_s=0.8 * seconds,
        train_s=0.5 * seconds,
        swap_stall_s=0.01 * seconds,
        mfu_s=0.2 * seconds,
        trainer_s={
            "trains": 0.5 * seconds,
            "publishes": 0.3 * seconds,
            "waits: generation": 0.15 * seconds,
            "other": 0.05 * seconds,
        },
        engines_s={"computes": 0.8 * seconds, "waits: the trainer": 0.2 * seconds},
        busy_s={"engine 0": 0.8 * seconds, "trainer": 0.5 * seconds},
        device_s={"cuda:0": 1.3 * seconds},
        wait_s={"actor: rows of the batch": 0.4 * seconds, "rollout: the gate": 0.1 * seconds},
    )
    return replace(made, **changes)


def run(trained: int = 3, **changes: Any) -> RunRecord:
    """A run that has trained so many batches of ten."""
    record = RunRecord(
        name="demo",
        status="running",
        config=config(),
        config_sha256="ab" * 32,
        branch=0,
        number=trained,
        planned_batches=10,
        ahead=32,
        device="cuda",
        counts=Counts(issued=20, running=5, ready=2, trained=4 * trained, dropped={"zero_spread": 1}),
        batches=tuple(batch(number) for number in range(trained)),
        evaluations=(),
        processes={0: totals(trained + 0.5)} if trained else {},
    )
    return replace(record, **changes)


def evaluation(number: int, score: float | None) -> Evaluation:
    return Evaluation(branch=0, number=number, score=score, response_tokens_mean=9.5, prompts=64)


def learning_run(batches: int = 37, planned: int = 81) -> RunRecord:
    """A run whose reward rises, with several kinds of trouble."""
    records = []
    for number in range(batches):
        done = number / planned
        records.append(
            batch(
                number,
                reward_mean=0.25 + 0.7 / (1 + math.exp(-12 * (done - 0.25))) + 0.04 * math.sin(2.4 * number),
                response_tokens_mean=4 + 9 * done,
                trained_tokens=4100,
                staleness={0: 2300, 1: 1400 - 20 * number, 2: 400},
                masked_tokens=6,
                step_s=0.35,
                totals=totals(0.35 * (number + 1), generated_tokens=1800 * (number + 1)),
            )
        )
    return replace(
        run(),
        name="addition",
        number=batches,
        batches=tuple(records),
        planned_batches=planned,
        counts=Counts(issued=640, running=18, ready=4, trained=592, dropped={"zero_spread": 26}),
        evaluations=(evaluation(0, 0.25), evaluation(30, 0.88)),
        processes={0: totals(0.35 * batches + 0.2, generated_tokens=1800 * batches + 900)},
    )
