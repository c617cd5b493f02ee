"""On which devices workers compute that a cluster places: those that they see, whatever the command's machine has."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from controller_jobs import make_job

from headrace.config import ConfigError, TrainConfig, load_config
from headrace.controller.building.engine_workers import load_engines
from headrace.controller.building.frozen_workers import frozen_ranks
from headrace.controller.building.trainer_workers import policy_group
from headrace.controller.planning.describe import _memory
from headrace.controller.planning.plan import Plan, make_plan
from headrace.controller.planning.role_devices import lanes_device, policy_device, role_device
from headrace.roles.workers.engine import EngineWorker
from headrace.roles.workers.frozen import ReferenceWorker
from headrace.runtime.wire.wire_format import copied
from headrace.runtime.workers import BASE_TYPES

JOINED = ["runtime.kind=ray", "runtime.address=10.0.0.1:6379"]
BOTH = ["cluster.place.trainer.devices=1", "cluster.place.engine={devices: 0.5}"]


class _Started(Exception):
    """In the place of a start."""


async def _start(kind: Any, specs: Any, where: Any) -> Any:
    raise _Started(specs[0])


RUNTIME: Any = SimpleNamespace(start=_start)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command is there is no device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    return make_job(tmp_path)


def plan_of(job: Path, *more: str) -> Plan:
    return make_plan(load_config(TrainConfig, job, [*JOINED, *more]))


def spec_of(making: Coroutine[Any, Any, object]) -> Any:
    with pytest.raises(_Started) as started:
        asyncio.run(making)
    return started.value.args[0]


@pytest.mark.parametrize("asked", ["auto", "cuda", "cuda:1"])
def test_a_worker_with_a_device_of_a_cluster_computes_on_it(job: Path, tmp_path: Path, asked: str) -> None:
    """It sees no other, so that it is its first."""
    plan = plan_of(job, *BOTH, f"model.device={asked}")
    assert spec_of(policy_group(plan, RUNTIME, tmp_path, None)).device == "cuda"
    engine = spec_of(load_engines(plan, RUNTIME, None))
    assert (engine.device, engine.cache) == ("cuda", plan.memory.rooms["engine"])
    assert copied(engine, BASE_TYPES.with_types(EngineWorker.types), "it") == engine
    assert (plan.memory.free, plan.memory.on_device) == (None, True)
    assert "what is free on each device of trainer is known there alone" in _memory(plan)[0]
    assert lanes_device(plan.config).type == "cpu"


def test_one_without_a_device_stays_where_the_config_says(job: Path, tmp_path: Path) -> None:
    own = [*BOTH, "algorithm.kl={coefficient: 0.1, place: loss}"]
    plan = plan_of(job, *own)
    ranks = frozen_ranks(ReferenceWorker, "m", 64, plan.config.reference.layout, plan, RUNTIME)
    assert spec_of(ranks).device == "cpu"
    plan = plan_of(job, "model.device=cpu", *own)
    assert spec_of(policy_group(plan, RUNTIME, tmp_path, None)).device == "cpu"
    with pytest.raises(ConfigError, match="device 'cuda' is not there: this machine has 0 CUDA devices"):
        plan_of(job, "model.device=cuda", "cluster.place.engine.devices=1")  # and none for the trainer


def test_engines_that_are_lent_have_the_trainers(job: Path) -> None:
    config = load_config(TrainConfig, job, [*JOINED, "cluster.place.trainer=[1, 1]", "engine.lent=1"])
    assert [role_device(config, role).type for role in ("lent", "trainer", "engine")] == ["cuda", "cuda", "cpu"]


def test_what_a_node_counts_as_devices_by_another_name_is_no_gpu(job: Path) -> None:
    config = load_config(TrainConfig, job, [*JOINED, *BOTH, "cluster.device=slot"])
    assert policy_device(config).type == "cpu"
    with pytest.raises(ConfigError, match="device 'gpu' is unknown"):
        policy_device(load_config(TrainConfig, job, [*JOINED, *BOTH, "model.device=gpu"]))


def test_a_ray_of_this_machine_has_its_devices(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(TrainConfig, job, ["runtime.kind=ray", *BOTH, "model.device=cuda:1"])
    with pytest.raises(ConfigError, match="this machine has 0 CUDA devices"):
        policy_device(config)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert str(policy_device(config)) == "cuda"
