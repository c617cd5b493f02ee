"""vLLM, as it is: in the environment that `make vllm-env` makes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import conforming
import pytest
from vllm_server import needs_vllm, serving, spec

from headrace.engines.conformance import CHECKS
from headrace.weights.shm import ShmPublisher

pytestmark = [pytest.mark.slow, needs_vllm]


def test_it_conforms(tmp_path: Path) -> None:
    (tmp_path / "shm").mkdir()

    async def run() -> None:
        async with serving(spec(tmp_path)) as worker:
            publish = conforming.Publications(ShmPublisher(tmp_path / "shm"))
            subject = conforming.subject(worker.engine, worker.engine._services.clock, publish)
            for check in CHECKS:
                await check(subject)

    asyncio.run(run())
