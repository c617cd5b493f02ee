"""What `headrace check` reckons of an offline trainer's memory, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from controller_jobs import CHARACTERS, CONFIGS

from headrace.config import ConfigError, RMConfig, SFTConfig
from headrace.controller.planning import free_memory
from headrace.controller.planning.product_workspaces import workspace_bytes
from headrace.controller.planning.role_devices import role_device
from headrace.offline.planning.memory import OfflineMemory, estimate_offline_memory

P = (len(CHARACTERS) + 2) * 32 + 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 64 + 2 * 32 + 2 * 8) + 32
"""Of the model: its embedding, which is its output layer; two layers; the last norm."""


def estimate(kind: Any, device: str, layout: str = "d1", longest: int = 40, **model: Any) -> OfflineMemory:
    trainer = {"layout": layout, "max_tokens_per_microbatch": 64, **model.pop("trainer", {})}
    given = {"model": {"path": "m", **model}, "data": {"train": "d"}, "trainer": trainer}
    return estimate_offline_memory(kind.model_validate(given), CONFIGS["qwen3"](), torch.device(device), longest)


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "free_bytes", lambda device: 1 << 30)


def test_on_a_cpu_each_replica_counts() -> None:
    found = estimate(SFTConfig, "cpu", "d2")
    assert found.parameters == P
    assert [*found.uses.values()] == [8 * P, 8 * P, 16 * P]
    assert (found.total, found.place, found.on_host) == (32 * P, "this host", {})


def test_more_ranks_than_this_machine_has_memory_for_are_refused() -> None:
    """Each has 190 MiB before it has a model, and 1 GiB is free."""
    estimate(SFTConfig, "cpu", "d5")
    with pytest.raises(ConfigError, match=r"has 6 processes .* use fewer ranks \(trainer\.layout\), or"):
        estimate(SFTConfig, "cpu", "d6")


def test_a_reward_model_has_a_head_of_one_row_and_its_bias() -> None:
    assert estimate(RMConfig, "cpu").parameters == P + 33


def test_on_a_device_passes_count() -> None:
    found = estimate(SFTConfig, "cuda:0", dtype="bfloat16")
    activations, products = found.uses["trainer: activations"], found.uses["workspaces of matrix products"]
    assert found.total - activations - products == 4 * P + 4 * P + 8 * P + 2 * P
    assert products == 2 * workspace_bytes()
    assert estimate(SFTConfig, "cuda:0", dtype="bfloat16", longest=64).uses["trainer: activations"] == activations
    assert estimate(SFTConfig, "cuda:0", dtype="bfloat16", longest=65).uses["trainer: activations"] > activations
    offloaded = estimate(SFTConfig, "cuda:0", dtype="bfloat16", trainer={"optimizer": {"offload": True}})
    assert offloaded.on_host == {"trainer: float32 weights, moments": 12 * P}


def test_what_is_free_on_a_device_of_a_cluster_that_is_joined_is_not_known_here() -> None:
    """Nor asked about: ranks compute on what the cluster gives them."""
    runtime, place = {"kind": "ray", "address": "10.0.0.1:6379"}, {"trainer": {"devices": 1}}
    given = {"model": {"path": "m", "device": "cuda:3"}, "data": {"train": "d"}, "runtime": runtime}
    config = SFTConfig.model_validate({**given, "cluster": {"place": place}})
    assert str(role_device(config, "trainer")) == "cuda"
    found = estimate_offline_memory(config, CONFIGS["qwen3"](), torch.device("cuda"), 40)
    assert (found.place, found.free, found.on_device) == ("cuda", None, True)
