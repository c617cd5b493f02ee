"""Memory of workers that a cluster places: of each device by itself, with one worker of each role that shares it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from controller_jobs import CONFIGS, make_job

from headrace.config import ConfigError, EngineConfig, TrainConfig, load_config
from headrace.controller.planning import free_memory
from headrace.controller.planning.cache_memory import KV_CACHE
from headrace.controller.planning.describe import _memory
from headrace.controller.planning.memory_estimate import MemoryEstimate, estimate_memory
from headrace.controller.planning.plan import make_plan
from headrace.engines.embedded import cache_plan
from headrace.engines.embedded.cache_plan import CacheRoom

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
RANKS = ["runtime.kind=ray", "trainer.layout={dp: 4, zero: 3}", "engine.replicas=4"]
EACH = [*RANKS, "cluster.place={trainer: {devices: 1}, engine: {devices: 1}}"]
JOINED = "runtime.address=10.0.0.1:6379"
LARGE = 80 * 2**30


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return make_job(tmp_path)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    """Bytes of each kind of device; None: nobody may ask."""
    there: dict[str, int | None] = {"cpu": LARGE, "cuda": LARGE}

    def free_bytes(device: torch.device) -> int:
        found = there[device.type]
        assert found is not None, f"{device} was asked about"
        return found

    monkeypatch.setattr(free_memory, "free_bytes", free_bytes)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    return there


def estimate(job: Path, *given: str, device: torch.device = CUDA) -> MemoryEstimate:
    return estimate_memory(load_config(TrainConfig, job, [*given]), CONFIGS["qwen3"](), device)


def test_each_device_has_one_worker(job: Path, free: dict[str, int | None]) -> None:
    """As many engines as there may be, each takes of its own what one takes; so does a rank."""
    found = estimate(job, *EACH)
    assert [each.roles for each in found.places] == [("trainer",), ("engine",)]
    of_one = estimate(job, "runtime.kind=ray").uses
    trainer, engine = (dict(each.uses) for each in found.places)
    engine.pop("workspaces of matrix products")
    assert engine == {use: size for use, size in of_one.items() if use.startswith("engine: ")}
    assert trainer["trainer: float32 weights"] == of_one["trainer: float32 weights"] // 4
    assert (found.uses, found.cache.slots, found.slots, found.on_device) == ({}, 8, 4 * 8, True)


def test_what_fits_each_device_is_not_refused(job: Path, free: dict[str, int | None]) -> None:
    """Together they are more than one has; and the cache of each is what is left beside one engine."""
    given = [*EACH, "trainer.max_tokens_per_microbatch=96"]
    roomy = estimate(job, *given)
    trainer, engine = roomy.places
    free["cuda"] = int(max(trainer.needed, engine.needed) / 0.95) + 2
    assert estimate(job, *given).cache == roomy.cache
    less = engine.needed - engine.uses[KV_CACHE] // 2  # of nine slots, of which one is nobody's
    free["cuda"] = int(less / 0.95) + 2
    assert trainer.needed < less
    assert estimate(job, *given).cache.slots == 3
    free["cuda"] = 1000
    with pytest.raises(ConfigError, match=r"one worker each of trainer needs .* of their device, and 0.00 GiB are"):
        estimate(job, *given)


def test_of_a_cluster_that_is_joined_nobody_is_asked(job: Path, free: dict[str, int | None]) -> None:
    """Nor is anything refused: not for the host's memory either, which is not that of the trainer's machine."""
    free |= {"cuda": None, "cpu": 10}
    found = estimate(job, *EACH, JOINED, "trainer.optimizer.offload=true")
    assert [each.free for each in found.places] == [None, None]
    assert found.beside_trainer["trainer: float32 weights, moments"] > 10
    assert found.published == found.beside_trainer["weight plane: newest version, and the next"] > 0
    assert found.beside_trainer["checkpoint: copy while it is written"] > 10
    assert found.cache.slots == 8


def test_who_shares_a_device_is_counted_together(job: Path, free: dict[str, int | None]) -> None:
    """Half a device has half of what is free; who is not placed is with the command, whatever it has."""
    given = ["runtime.kind=ray", JOINED, "algorithm.kl={coefficient: 0.1, place: loss}"]
    place = ["cluster.place={trainer: {devices: 0.5}, engine: {devices: 0.5}}", "cluster.colocate=[[trainer, engine]]"]
    found = estimate(job, *given, *place)
    (both,) = found.places
    assert (both.roles, both.room.share) == (("trainer", "engine"), 0.95 / 2)
    names = {use.partition(": ")[0] for use in both.uses}
    assert names == {"trainer", "weight plane", "engine", "workspaces of matrix products"}
    assert both.room.beside == both.needed - both.uses[KV_CACHE]
    assert [*found.uses] == ["reference: weights"]
    assert (found.place, found.free) == ("this host", LARGE)
    known = estimate(job, "runtime.kind=ray", *place)
    assert [each.free for each in known.places] == [LARGE // 2]


def test_those_that_take_turns_on_their_device_do_so_there(job: Path, free: dict[str, int | None]) -> None:
    given = ["runtime.kind=ray", "cluster.place.trainer.devices=1", "cluster.colocate=[[trainer, engine]]"]
    turns = ["cluster.place.engine.devices=1", "engine.colocated=true", "async.mode=sync"]
    (both,) = estimate(job, *given, *turns).places
    assert both.turns
    assert both.needed < sum(both.uses.values())
    trains = sum(size for use, size in both.uses.items() if use.startswith("trainer: "))
    assert both.room.beside == sum(both.uses.values()) - trains - both.uses[KV_CACHE]


def test_lent_engines_are_on_the_devices_of_the_trainer(job: Path, free: dict[str, int | None]) -> None:
    found = estimate(job, *EACH, "engine.lent=2")
    assert [each.roles for each in found.places] == [("trainer", "lent"), ("engine",)]
    assert found.places[0].uses["lent engines: KV cache"] == found.cache.bytes_wanted
    assert {*found.rooms} == {"engine", "lent"}


def test_engines_on_processors_of_a_cluster_that_is_joined_size_their_caches_there(
    job: Path, free: dict[str, int | None]
) -> None:
    """This machine has too little for one."""
    found = estimate(job, "runtime.kind=ray", "engine.replicas=4", device=CPU)
    assert (found.rooms, found.place) == ({}, "this host")
    free["cpu"] = 1
    found = estimate(job, "runtime.kind=ray", JOINED, "engine.replicas=4", "cluster.place.engine={}", device=CPU)
    assert (found.rooms, found.cache.slots, found.free) == ({"engine": None}, 8, None)
    assert found.place == "the cluster's nodes"


def test_check_tells_of_each_device(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    said = "\n".join(_memory(make_plan(load_config(TrainConfig, job, [*EACH, JOINED]))))
    for role in ("trainer", "engine"):
        assert f"what is free on each device of {role} is known there alone" in said
    assert "of the trainer's machine: weight plane: newest version, and the next" in said


@pytest.mark.parametrize(("total", "slots"), [(40_000, 3), (30_000, 2), (10**9, 8)])
def test_the_room_for_a_cache_is_what_is_left_by_hand(total: int, slots: int) -> None:
    """A token takes 2 x 2 layers x 2 heads x 8 numbers of 4 bytes, 256; a sequence of 8 of them 2,048, and one is
    nobody's. Of half of 40,000 bytes 1,000 are taken, and two share the rest: 9,500, four sequences and a half."""
    config: Any = CONFIGS["qwen3"]()
    given = EngineConfig(max_concurrent_sequences=8, max_context=8)
    assert cache_plan.cache_shape(config).bytes_per_token(torch.float32) == 256
    assert CacheRoom(0.5, 1000, 2).plan(config, given, torch.float32, total, paged=False).slots == slots


def test_too_little_room_for_one_sequence_is_told() -> None:
    config: Any = CONFIGS["qwen3"]()
    with pytest.raises(ConfigError, match=r"of the 1000 bytes of its device 0 are left beside 2000 for all else"):
        CacheRoom(0.95, 2000).plan(config, EngineConfig(max_context=8), torch.float32, 1000, paged=False)
