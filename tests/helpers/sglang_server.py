"""An SGLang server for tests, of the environment that `make sglang-env` makes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import conforming
import pytest

from headrace.engines.servers.dialect import Expected
from headrace.engines.servers.engine import Limits
from headrace.engines.servers.launch import ServerLaunch
from headrace.roles.workers.server_engine import ServerSpec

PYTHON = os.environ.get("HEADRACE_SGLANG_PYTHON", str(Path(__file__).parents[2] / ".venv-sglang/bin/python"))
needs_sglang = pytest.mark.skipif(not os.path.exists(PYTHON), reason="make sglang-env makes the environment of SGLang")


def spec(folder: Path, *, dtype: str = "float32", python: str = PYTHON, keeps: bool = False, **args: Any) -> ServerSpec:
    launch = ServerLaunch(
        python=python,
        weights=str(conforming.folder("a", folder / "model")),
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
    shape = {"vocab_size": conforming.VOCAB, "hidden_size": 128, "num_hidden_layers": 3}
    return ServerSpec(
        "sglang", limits, Expected(shape, conforming.CONTEXT, dtype, True), launch, str(folder / "sglang.log")
    )
