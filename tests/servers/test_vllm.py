"""vLLM, as it is: in the environment that `make vllm-env` makes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import conforming
import pytest
from vllm_server import needs_vllm, serving, spec

from headrace.config.errors import ConfigError
from headrace.engines.conformance import CHECKS
from headrace.engines.protocol import SwapMode
from headrace.engines.servers.dialect import Expected
from headrace.roles.workers.server_engine import ServerEngineWorker
from headrace.runtime.workers import WorkerError
from headrace.weights.shm import ShmPublisher

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_vllm]


def test_it_conforms(tmp_path: Path) -> None:
    (tmp_path / "shm").mkdir()

    async def run() -> None:
        async with serving(spec(tmp_path)) as worker:
            publish = conforming.Publications(ShmPublisher(tmp_path / "shm"))
            subject = conforming.subject(worker.engine, worker.engine._services.clock, publish)
            for check in CHECKS:
                await check(subject)
            for expected, words in (
                (
                    Expected({"hidden_size": 64}, 64, "float32"),
                    "has another model: its hidden_size is 128, and that of",
                ),
                (Expected({}, 4096, "float32"), "has a context of 1024 tokens, and the run needs 4096"),
                (Expected({}, 64, "bfloat16"), r"computes in torch.float32, and engine.dtype is bfloat16"),
            ):
                with pytest.raises(ConfigError, match=words):
                    await worker.engine.dialect.meet(expected)
            await require_attached(worker, publish, tmp_path)

    asyncio.run(run())


async def require_attached(launched: ServerEngineWorker, publish: conforming.Publications, folder: Path) -> None:
    """To the same server, by its address: what it holds is of no version until it has taken one."""
    assert launched._http is not None
    given = replace(spec(folder), launch=None, url=launched._http.url)
    async with serving(given) as worker:
        assert worker.engine.rests
        receiver = publish("b", False)
        await worker.engine.update(receiver, SwapMode.RECOMPUTE)
        subject = conforming.subject(worker.engine, worker.engine._services.clock, publish)
        version = receiver.latest()
        assert version is not None
        subject.held = {version: "b"}
        asked = subject.request(tokens=8)
        subject.judge(asked, await subject.whole(asked))
    assert await launched.engine.dialect.is_up(), "it is somebody else's"
    other = replace(given, expected=Expected({"vocab_size": 7}, 64, "float32"))
    with pytest.raises(WorkerError, match=r"ConfigError: .* has another model: its vocab_size is 512"):
        async with serving(other):
            pass


def test_an_option_that_it_does_not_know_is_refused_by_name(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(spec(tmp_path, no_such_option=3)):
            pass

    with pytest.raises(WorkerError, match=r"ConfigError: engine.args: vLLM does not take them: .*--no-such-option"):
        asyncio.run(run())
