"""A server that somebody else launched, attached to by its address."""

from __future__ import annotations

from dataclasses import replace

import conforming
import pytest
from vllm_server import serving

from headrace.engines.protocol import SwapMode
from headrace.engines.servers.dialect import Expected
from headrace.roles.workers.server_engine import ServerEngineWorker, ServerSpec
from headrace.runtime.workers import WorkerError


async def require_attached(
    launched: ServerEngineWorker, launched_as: ServerSpec, publish: conforming.Publications
) -> None:
    """To the same server: what it holds is of no version until it has taken one."""
    assert launched._http is not None
    given = replace(launched_as, launch=None, url=launched._http.url)
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


async def require_lists_routes(worker: ServerEngineWorker, needed: set[str]) -> None:
    """By which it is seen, when a server is met, that it lacks one."""
    assert worker._http is not None
    told = await worker._http.call("GET", "/openapi.json", what="its routes", seconds=60.0)
    assert needed <= set(told["paths"])
