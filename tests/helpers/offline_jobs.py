"""Runs of the offline trainers on a small model, and what is told of them."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from headrace.config import DPOConfig, RMConfig, SFTConfig
from headrace.controller.stopping import StopFlag
from headrace.observe.offline.listeners import NOBODY
from headrace.observe.offline.run_record import OfflineWatcher
from headrace.offline.loop import OfflineResult
from headrace.offline.pairs import run_dpo, run_rm
from headrace.offline.sft import run_sft
from headrace.store import RunReader

RUNS: dict[str, Any] = {"sft": (SFTConfig, run_sft), "rm": (RMConfig, run_rm), "dpo": (DPOConfig, run_dpo)}
AS_SGD = {"lr": 1e3, "betas": [0.5, 0.9], "eps": 1e4, "weight_decay": 1e-6}
"""AdamW divides by sqrt(v) + eps: with eps far above all gradients a step is lr / eps times their momentum."""
STEPS = 4
TWO_CUT_UP = {"dp": 2, "zero": 2}


def settings(folder: Path, model: Path, name: str, layout: object = "d1", **trainer: object) -> dict[str, Any]:
    """Rows of 8 to 40 tokens, of which one micro-batch takes 40; five units a batch, of sixteen."""
    data = folder / f"{name}.jsonl"
    with data.open("w") as file:
        for a in range(4):
            for b in range(4):
                answer = f"{a + b}" * (1 + b)
                row = {"response": answer} if name == "sft" else {"chosen": answer, "rejected": "b" * (a + 1)}
                file.write(json.dumps({"prompt": f"{a}+{b}=" + "x" * (3 * a * b), **row}) + "\n")
    size = "samples_per_batch" if name == "sft" else "pairs_per_batch"
    own = {"optimizer": AS_SGD, "max_grad_norm": 1e6, "max_tokens_per_microbatch": 40, "steps": STEPS}
    return {
        "model": {"path": str(model), "device": "cpu"},
        "data": {"train": str(data), "eval": str(data)},
        "trainer": {size: 5, **own, "layout": layout, **trainer},
        "checkpoint": {"every": 2},
        "runtime": {"threads": 2},
    }


def train(
    name: str, config: dict[str, Any], out: Path, *, begin: Any = "new", until: int = STEPS, listeners: Any = NOBODY
) -> OfflineResult:
    """Told to stop after `until` steps."""
    kind, run = RUNS[name]
    stop = StopFlag()

    def report(step: int, loss: float, rate: float) -> None:
        stop.requested = step == until < STEPS

    own = {"begin": begin, "report": report, "now": time.monotonic, "stop": stop, "listeners": listeners}
    result: OfflineResult = run(kind.model_validate(config), out, **own)
    return result


def told(folder: Path) -> list[float]:
    """Of each step, and of the held-out rows before and after: all that is measured."""
    with RunReader(folder) as reader:
        run = OfflineWatcher(reader).read()
    assert [each.step for each in run.steps] == [*range(1, STEPS + 1)]
    assert [each.step for each in run.evaluations] == [0, STEPS]
    every = [asdict(each.measured) for each in (*run.steps, *run.evaluations)]
    return [value for each in every for value in each.values() if value is not None]


def same(one: Path, other: Path) -> None:
    """Losses, held-out rows and weights, to float32's rounding of sums."""
    assert told(other) == pytest.approx(told(one), rel=2e-6, abs=1e-6)
    weights, found = (load_file(folder / "model" / "model.safetensors") for folder in (one, other))
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-6)
