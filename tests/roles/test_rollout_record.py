"""The record of rollouts has what it says that it kept, and costs the run nothing where it cannot be written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from role_pool import Scene
from table_rows import row

from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.roles.actors.batch_stats import BatchStats
from headrace.roles.actors.trained_step import TrainedRow, TrainedStep
from headrace.roles.rollout_record import RolloutRecord, Writer
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.store.errors import StoreError
from headrace.store.rollouts import Query, Rollout, Rollouts, RolloutsReader

KEY, BATCH = GroupKey(0, 5, 0), 3


@dataclass
class Kept:
    """A record while batch 3 is composed, and what its listener was told."""

    folder: Path
    scene: Scene
    record: RolloutRecord
    told: list[Rollout] = field(default_factory=list)

    def read(self) -> list[Rollout]:
        with RolloutsReader(self.folder) as reader:
            return reader.read(Query())


def keep(folder: Path, body: Callable[[Kept], Awaitable[None]], begin: Callable[[Path], Writer] = Rollouts) -> None:
    """`begin`: see `RolloutRecord`."""

    async def main(runtime: VirtualRuntime) -> None:
        scene = Scene(runtime, SimpleNamespace(batch=BATCH))
        context = replace(scene.context, table=cast(Any, SimpleNamespace(refs=runtime.refs)))
        told: list[Rollout] = []
        record = RolloutRecord(context, lambda: begin(folder), decode, per_batch=2, seed=0, listener=told.extend)
        await body(Kept(folder, scene, record, told))
        await record.close()

    run_virtually(main)


def decode(tokens: object) -> str:
    return "".join(f"{token}," for token in np.asarray(tokens).tolist())


def group_of(*statuses: SampleStatus) -> Group:
    """A sample of each, of one prompt token and two of version 0."""
    samples = [
        Sample(
            group=KEY,
            episode=episode,
            index=0,
            tokens=np.arange(3, dtype=np.int32),
            loss_mask=np.array([False, True, True]),
            logprobs=np.array([0.0, -1.0, -1.0], np.float32),
            versions=np.array([-1, 0, 0], np.int32),
            branches=np.array([-1, 0, 0], np.int32),
            status=status,
            reward=None if status is SampleStatus.FAILED else 1.0,
            failure="reward: no answer" if status is SampleStatus.FAILED else None,
        )
        for episode, status in enumerate(statuses)
    ]
    return Group(KEY, "7", 0, BATCH, tuple(samples))


def step_of(rewards: Sequence[float]) -> TrainedStep:
    """A batch of one group."""
    columns = {
        "tokens": np.arange(3, dtype=np.int32),
        "kept_sets": None,
        "temperatures": None,
        "experts": None,
        "loss_mask": np.array([False, True, True]),
        "logprobs": np.zeros(3, np.float32),
        "versions": np.array([-1, 0, 0], np.int32),
        "branches": np.array([-1, 0, 0], np.int32),
        "metadata": {},
        "terms": {},
    }
    rows = [row(number, {**columns, "reward": reward}, KEY, episode=number) for number, reward in enumerate(rewards)]
    trained = tuple(TrainedRow(one) for one in rows)
    return TrainedStep(BATCH, 1, 0, {}, BatchStats(), ((),), 0.0, rows=trained)


def test_what_failed_can_be_read_once_it_is_told(tmp_path: Path) -> None:
    async def body(kept: Kept) -> None:
        await kept.record.failed(group_of(SampleStatus.COMPLETED, SampleStatus.FAILED))
        assert kept.read() == kept.told
        (one,) = kept.told
        assert (one.batch, one.key, one.episode, one.prompt_id) == (BATCH, KEY, 1, "7")
        assert (one.status, one.reason) == ("failed", "reward: no answer")
        assert [turn.text for turn in one.turns] == ["0,", "1,2,"]

    keep(tmp_path, body)


def test_of_a_batch_the_best_and_the_worst_can_be_read_until_the_run_goes_back_behind_it(tmp_path: Path) -> None:
    async def body(kept: Kept) -> None:
        await kept.record.trained(step_of([0.5, 2.0, 1.0, -1.0]))
        assert kept.read() == kept.told
        assert [(one.episode, one.reward, one.tokens) for one in kept.told] == [(1, 2.0, 2), (3, -1.0, 2)]
        await kept.record.go_back(BATCH + 1)
        assert len(kept.read()) == 2
        await kept.record.go_back(BATCH)
        assert kept.read() == []

    keep(tmp_path, body)


def test_a_record_that_cannot_be_written_is_one_event_and_nobody_is_told_of_a_sample(tmp_path: Path) -> None:
    class Full(Rollouts):
        def write(self, rollouts: Any) -> None:
            raise StoreError("the disk is full")

    async def body(kept: Kept) -> None:
        for _ in range(2):
            await kept.record.failed(group_of(SampleStatus.FAILED))
        assert kept.scene.events == [("rollouts_not_kept", {"message": "StoreError: the disk is full"})]
        assert kept.told == []

    keep(tmp_path, body, Full)
