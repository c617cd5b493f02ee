"""What a device's memory plan counts of matrix products, by hand in pairs of a thread and a stream."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from controller_jobs import CONFIGS, make_job

from headrace.config import TrainConfig, load_config
from headrace.controller.planning.memory_estimate import estimate_memory
from headrace.controller.planning.product_workspaces import WORKSPACES, workspace_bytes

CUDA = torch.device("cuda:0")
LARGE, SMALL = 32 * 2**20, 8_519_680
"""`:4096:8`, which a device is told unless the environment says otherwise: 8 x 4,096 KiB; `:4096:2:16:8`, torch's own
before Hopper: 2 x 4,096 + 8 x 16."""


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)


@pytest.mark.parametrize(
    ("config", "size"), [(None, LARGE), ("", LARGE), (":4096:2:16:8", SMALL), (":0:0", 0), (":4096:8", LARGE)]
)
def test_the_environment_says_how_large_one_is(config: str | None, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if config is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
    assert workspace_bytes() == size


@pytest.mark.parametrize(
    ("overrides", "pairs"),
    [
        ([], 2 + 2),  # the trainer's two passes; the engine's lane, and its captures
        (["algorithm.recipe=ppo"], 2 + 2 + 1 + 2),  # and the critic's, and a reference
        (["algorithm.kl.coefficient=0.1"], 2 + 1 + 2),  # and a reference
        (["engine.replicas=2"], 2 + 2 * 2),
        (["engine.dtype=bfloat16"], 2 + 2 + 1),  # a version is looked at beside the present one
        (["runtime.turns=true"], 2 + 1),  # one lane, whose backward passes have a thread of their own; captures
        (["async.mode=sync", "algorithm.recipe=ppo"], 2 + 1),
        (["async.mode=sync", "engine.process=true"], 2 + 2 + 1),  # which have lanes of their own
    ],
)
def test_each_who_computes_has_its_own(
    overrides: list[str], pairs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**40, 2**40))
    config = load_config(TrainConfig, make_job(tmp_path), overrides)
    uses = estimate_memory(config, CONFIGS["qwen3"](), CUDA).uses
    assert uses[WORKSPACES] == pairs * LARGE


def test_a_run_without_a_trainer_or_an_engine_has_none_of_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**40, 2**40))
    config = load_config(TrainConfig, make_job(tmp_path))
    for left_out in ({"trainer": False}, {"engine": False}):
        uses = estimate_memory(config, CONFIGS["qwen3"](), CUDA, **left_out).uses
        assert uses[WORKSPACES] == 2 * LARGE
