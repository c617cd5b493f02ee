"""Weights that servers are sent by gloo, as to another machine."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import conforming
import psutil
import pytest
import sglang_server
import vllm_server
from attached import require_attached
from ray_run import gone
from served_run import BATCHES, begun, below, ended_well, of_name, until_batch
from vllm_server import core_of, serving

from headrace.engines import conformance
from headrace.engines.protocol import EngineError, SwapMode
from headrace.roles.workers.server_engine import ServerEngineWorker, ServerSpec
from headrace.store import RunReader
from headrace.weights.plane import WeightError
from headrace.weights.shm import ShmPublisher

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SOON_S = 60.0
"""Long before a broadcast's deadline."""
EXPERTS = "qwen3_moe"
ROUTED_GAP = 0.3
"""Nats of a token, at most: where two experts are as good as alike a rounding in float32 has another one taken, of some
ten thousand tokens perhaps of one, and those behind it have its keys. Of the other model it is 1, in the mean."""
CHECKS = {
    "vllm": (
        conformance.new_weights_are_used_and_told,
        conformance.nothing_is_found_of_old_weights,
        conformance.wrong_weights_are_refused,
        conformance.no_token_is_older_than_was_asked_for,
    ),
    "sglang": (  # on a CPU it takes its time with experts
        conformance.nothing_is_found_of_old_weights,
        conformance.wrong_weights_are_refused,
    ),
}
SENDER = "headrace weights by gloo"
SERVERS = [
    pytest.param(vllm_server.spec, id="vllm", marks=vllm_server.needs_vllm),
    pytest.param(sglang_server.spec, id="sglang", marks=sglang_server.needs_sglang),
]


@pytest.mark.parametrize("spec", SERVERS)
def test_versions_come_by_gloo_and_after_what_fails_in_a_new_group(
    tmp_path: Path, spec: Callable[..., ServerSpec]
) -> None:
    """Of a model with experts."""
    (tmp_path / "shm").mkdir()

    async def run() -> None:
        launched_as = replace(spec(tmp_path, kind=EXPERTS), weights_from="127.0.0.1")
        async with serving(launched_as) as worker:
            publish = conforming.Publications(ShmPublisher(tmp_path / "shm"), EXPERTS)
            subject = conforming.subject(worker.engine, worker.engine._services.clock, publish)
            subject.largest_gap = ROUTED_GAP
            for check in CHECKS[launched_as.kind]:
                await check(subject)
            if launched_as.kind == "sglang":
                await sglang_server.require_holds_what_is_published(worker, publish)
            await require_taken_again(worker, publish, killed=lambda: sender_of(worker))
            subject.held[worker.engine.version] = "a"
            request = subject.request(tokens=8)
            subject.judge(request, await subject.whole(request))
            await require_attached(worker, launched_as, publish)

            await require_ends(worker, publish, killed=lambda: core_of(worker))

    asyncio.run(run())


async def require_taken_again(
    worker: ServerEngineWorker, publish: conforming.Publications, killed: Callable[[], psutil.Process]
) -> None:
    """What sends dies while the server waits for it: the server rests, and takes the next version."""
    engine, port = worker.engine, sender_port(worker)
    before = time.monotonic()
    with pytest.raises(WeightError):
        await update_while(worker, publish, "b", killed)
    assert time.monotonic() - before < SOON_S
    assert engine.rests
    assert await engine.dialect.is_up()
    await engine.update(publish("a", False), SwapMode.RECOMPUTE)
    assert not engine.rests
    assert sender_port(worker) != port


async def require_ends(
    worker: ServerEngineWorker, publish: conforming.Publications, killed: Callable[[], psutil.Process]
) -> None:
    """The server dies while it is sent to."""
    before = time.monotonic()
    with pytest.raises((WeightError, EngineError)):
        await update_while(worker, publish, "b", killed)
    assert time.monotonic() - before < SOON_S
    assert worker.engine.rests or worker.engine.failure is not None


async def update_while(
    worker: ServerEngineWorker, publish: conforming.Publications, model: str, killed: Callable[[], psutil.Process]
) -> None:
    """The update in whose midst a process is killed: the server waits for bytes then."""
    sender = worker._sender
    assert sender is not None
    send: Callable[..., Coroutine[Any, Any, None]] = sender.send

    async def late(*given: Any, **how: Any) -> None:
        await asyncio.sleep(1.0)
        killed().kill()
        await send(*given, **how)

    sender.send = late  # type: ignore[method-assign]
    try:
        await worker.engine.update(publish(model, False), SwapMode.RECOMPUTE)
    finally:
        del sender.send  # type: ignore[method-assign]


def sender_of(worker: ServerEngineWorker) -> psutil.Process:
    assert worker._sender is not None
    assert worker._sender._process is not None
    return psutil.Process(worker._sender._process.pid)


def sender_port(worker: ServerEngineWorker) -> int:
    assert worker._sender is not None
    return worker._sender.port


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(
            {"kind": "vllm", "python": vllm_server.PYTHON, "args": {"skip_tokenizer_init": True}},
            id="vllm",
            marks=vllm_server.needs_vllm,
        ),
        pytest.param(
            {"kind": "sglang", "python": sglang_server.PYTHON},
            id="sglang",
            marks=[sglang_server.needs_sglang, pytest.mark.soak],
        ),
    ],
)
def test_a_run_loses_nothing_where_what_sends_weights_is_killed(tmp_path: Path, engine: dict[str, Any]) -> None:
    process, run = begun(
        tmp_path, weights__transport="gloo", **{f"engine__{name}": value for name, value in engine.items()}
    )
    before: list[psutil.Process] = []
    try:
        until_batch(run, 4, process)
        before = below(process)
        os.kill(of_name(process, SENDER).pid, signal.SIGKILL)
        out, _ = process.communicate(timeout=290.0)
    finally:
        process.kill()
    assert len(ended_well(process, run, out)) == BATCHES
    with RunReader(run) as reader:
        assert "engine_died" not in [event.kind for event in reader.events.read()]
    assert not gone(before, 10.0)
