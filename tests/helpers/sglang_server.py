"""An SGLang server for tests, of the environment that `make sglang-env` makes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import conforming
import pytest
import torch
import torch.nn.functional as F

from headrace.engines.protocol import SwapMode
from headrace.engines.servers.dialect import Expected
from headrace.engines.servers.engine import Limits
from headrace.engines.servers.launch import ServerLaunch
from headrace.models.config_identity import identity
from headrace.roles.workers.server_engine import ServerEngineWorker, ServerSpec

PYTHON = os.environ.get("HEADRACE_SGLANG_PYTHON", str(Path(__file__).parents[2] / ".venv-sglang/bin/python"))
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
EXPERTS = {"gate_up_proj": "w13_weight", "down_proj": "w2_weight"}
FILLED_TO = 32
needs_sglang = pytest.mark.skipif(not os.path.exists(PYTHON), reason="make sglang-env makes the environment of SGLang")


def spec(
    folder: Path,
    *,
    dtype: str = "float32",
    kind: str = "qwen3",
    python: str = PYTHON,
    keeps: bool = False,
    **args: Any,
) -> ServerSpec:
    """`kind`: see `conforming.model`."""
    launch = ServerLaunch(
        python=python,
        weights=str(conforming.folder("a", folder / "model", kind)),
        dtype=dtype,
        slots=32,
        max_context=conforming.CONTEXT,
        seed=0,
        on_cpu=True,
        keeps=keeps,
        top_k=20,
        threads=1,
        args=args,
        start_s=240.0,
    )
    limits = Limits(32, conforming.CONTEXT, conforming.VOCAB, dtype)
    expected = Expected(identity(conforming.model("a", kind).config), conforming.CONTEXT, dtype, True, model_type=kind)
    return ServerSpec("sglang", limits, expected, launch, str(folder / "sglang.log"))


async def require_holds_what_is_published(worker: ServerEngineWorker, publish: conforming.Publications) -> None:
    """By its own checksums, of all of its parameters: the first 8 bytes of a SHA-256, on a CPU."""
    for name in ("b", "a"):
        await worker.engine.update(publish(name, False), SwapMode.RECOMPUTE)
        assert worker._http is not None
        told = await worker._http.call(
            "POST", "/weights_checker", {"action": "checksum"}, what="its checksums", seconds=60.0
        )
        assert told["ranks"][0]["checksums"] == checksums(conforming.model(name, publish.kind))


def checksums(model: torch.nn.Module) -> dict[str, str]:
    """Of its parameters as SGLang has them: some are fused."""
    parameters = dict(model.named_parameters())
    fused = {part: whole for whole, parts in FUSED.items() for part in parts}
    found: dict[str, str] = {}
    for name, parameter in parameters.items():
        module, _, last = name.rpartition(".")
        parent, _, own = module.rpartition(".")
        if own == "experts":
            whole, parts = f"{module}.{EXPERTS[last]}", [filled_up(last, parameter)]
        elif own in fused:
            whole = f"{parent}.{fused[own]}.{last}"
            parts = [parameters[f"{parent}.{part}.{last}"] for part in FUSED[fused[own]]]
        else:
            whole, parts = name, [parameter]
        data = b"".join(part.detach().numpy().tobytes() for part in parts)
        found[whole] = hashlib.sha256(data).hexdigest()[:16]
    return found


def filled_up(name: str, experts: torch.Tensor) -> torch.Tensor:
    """Their matrices as SGLang has them on a CPU: gate and up projections as wide as a multiple of 32, with zeros."""
    if name == "down_proj":
        return F.pad(experts, (0, -experts.shape[2] % FILLED_TO))
    halves = experts.unflatten(1, (2, -1))
    return F.pad(halves, (0, 0, 0, -halves.shape[2] % FILLED_TO)).flatten(1, 2)
