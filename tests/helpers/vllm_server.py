"""A vLLM server for tests, of the environment that `make vllm-env` makes."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import conforming
import psutil
import pytest

from headrace.engines.servers.dialect import Expected
from headrace.engines.servers.engine import Limits
from headrace.engines.servers.launch import ServerLaunch
from headrace.models.config_identity import identity
from headrace.roles.workers.server_engine import ServerEngineWorker, ServerSpec
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.workers import Placement

PYTHON = os.environ.get("HEADRACE_VLLM_PYTHON", str(Path(__file__).parents[2] / ".venv-vllm/bin/python"))
needs_vllm = pytest.mark.skipif(not os.path.exists(PYTHON), reason="make vllm-env makes the environment of vLLM")


def spec(folder: Path, *, dtype: str = "float32", kind: str = "qwen3", **args: Any) -> ServerSpec:
    """`kind`: see `conforming.model`."""
    model = conforming.folder("a", folder / "model", kind)
    launch = ServerLaunch(
        python=PYTHON,
        weights=str(model),
        dtype=dtype,
        slots=32,
        max_context=conforming.CONTEXT,
        seed=0,
        on_cpu=True,
        top_k=20,
        threads=1,
        args={"skip_tokenizer_init": True, **args},
        start_s=240.0,
    )
    limits = Limits(32, conforming.CONTEXT, conforming.VOCAB, dtype)
    expected = Expected(identity(conforming.model("a", kind).config), conforming.CONTEXT, dtype)
    return ServerSpec("vllm", limits, expected, launch, str(folder / "vllm.log"))


def core_of(worker: ServerEngineWorker) -> psutil.Process:
    """What computes."""
    assert worker._server is not None
    return worker._server._needed[0]


@asynccontextmanager
async def serving(given: ServerSpec) -> AsyncGenerator[ServerEngineWorker]:
    """The worker, its server up."""
    runtime = InlineRuntime()
    try:
        workers = await runtime.start(ServerEngineWorker, [given], Placement(start_s=300.0))
        await workers.call("start", what="the server", seconds=300.0)
        worker = workers.here(0)
        assert isinstance(worker, ServerEngineWorker)
        yield worker
        await workers.close()
    finally:
        await runtime.close()
