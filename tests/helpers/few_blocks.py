"""What is asked of a real server in bfloat16 whose KV cache holds a few of the requests that it may have."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import conforming
import psutil
import pytest
import torch
from ray_run import lives

from headrace.engines.conformance import Subject, a_death_is_told
from headrace.engines.protocol import FinishReason, GenerateRequest, SwapMode, TokenChunk
from headrace.engines.servers.window import ServerLoad
from headrace.roles.workers.server_engine import ServerEngineWorker
from headrace.weights.plane import WeightError
from headrace.weights.shm import ShmPublisher

GAP = 0.3
"""Nats of a token, at most, that a server in bfloat16 is from the model in float32, of which it is 0.01 in the mean; of
the other model 1."""
BOUND = r"0\.03 is the bound in bfloat16"
_LEFT_OUT = "model.layers.1.mlp.down_proj.weight"
_ASKED, _TOKENS = 48, 160
"""Requests, more than the server's slots, and tokens of each."""
_MORE_TIMES = 4
_END_S = 30.0


async def require_finds_gross_faults(worker: ServerEngineWorker, subject: Subject, folder: Path, lacks: str) -> None:
    """By the bound of bfloat16, of a trainer in float32 and of one in bfloat16: a model is taken; another seed's is
    refused, and one of which a tensor is as it was. `lacks`: what is said of one that comes without a tensor. The
    server has the model "a" in the end."""
    engine = worker.engine
    for dtype in (torch.float32, torch.bfloat16):
        publish = _publications(worker, folder / f"{dtype}", dtype=dtype)
        await engine.update(publish("b", False), SwapMode.RECOMPUTE)
        held = engine.version
        for receiver in (publish.other_than("a"), publish("a", True)):
            with pytest.raises(WeightError, match=BOUND):
                await engine.update(receiver, SwapMode.RECOMPUTE)
            assert (engine.rests, engine.version) == (True, held)
        await engine.update(publish("b", False), SwapMode.RECOMPUTE)
        without = _publications(worker, folder / f"{dtype}, one left out", dtype=dtype, without=_LEFT_OUT)
        with pytest.raises(WeightError, match=lacks):
            await engine.update(without("a", False), SwapMode.RECOMPUTE)
        publish.number = without.number
        await engine.update(publish("a", False), SwapMode.RECOMPUTE)
        subject.held[engine.version] = "a"
        asked = subject.request(32)
        subject.judge(asked, await subject.whole(asked))


def _publications(
    worker: ServerEngineWorker, folder: Path, *, dtype: torch.dtype, without: str | None = None
) -> conforming.Publications:
    folder.mkdir()
    made = conforming.Publications(ShmPublisher(folder), dtype=dtype, without=without)
    made.number = worker.engine.version.number + 10  # beyond what was refused
    return made


async def require_nothing_lost_where_it_is_full(
    worker: ServerEngineWorker, subject: Subject, until: int | None = None
) -> tuple[list[ServerLoad], int]:
    """More requests than the server holds: each has its tokens once. What it said of itself meanwhile, and the fewest
    requests that it had while others waited for it. Some times, until those are so few, where that is given: how often
    it is looked at meanwhile depends on what else the machine does."""
    loads, fewest = await _nothing_lost(worker, subject)
    for _ in range(_MORE_TIMES):
        if until is None or fewest <= until:
            break
        more, at_once = await _nothing_lost(worker, subject)
        loads, fewest = [*loads, *more], min(fewest, at_once)
    return loads, fewest


async def _nothing_lost(worker: ServerEngineWorker, subject: Subject) -> tuple[list[ServerLoad], int]:
    engine = worker.engine
    before, read = await engine.dialect.sampled(), engine.stats().generated_tokens
    requests = [subject.request(_TOKENS, seed=seed) for seed in range(_ASKED)]
    running = [asyncio.ensure_future(subject.whole(request)) for request in requests]
    loads, at_once = [], list[int]()

    async def watch() -> None:
        """Often: between two looks of a server that has much to do all may have ended, and others begun."""
        while not all(each.done() for each in running):
            now = engine.stats()
            if now.waiting:
                at_once.append(now.running)
            await subject.clock.sleep(0.005)

    watching = asyncio.ensure_future(watch())
    while not all(each.done() for each in running):
        loads.append(await load_of(worker))
        await subject.clock.sleep(0.1)
    await watching
    _require_whole(subject, requests, await asyncio.gather(*running))
    after, wanted = await engine.dialect.sampled(), _ASKED * _TOKENS
    assert engine.stats().generated_tokens - read == wanted
    assert before is not None
    assert after is not None
    assert after - before == wanted, "as it counts itself"
    return loads, min(at_once)


async def load_of(worker: ServerEngineWorker) -> ServerLoad:
    load = await worker.engine.dialect.fares()
    assert load is not None
    return load


def _require_whole(subject: Subject, requests: Sequence[GenerateRequest], answers: Sequence[TokenChunk]) -> None:
    for request, answer in zip(requests, answers, strict=True):
        assert answer.finish_reason is FinishReason.LENGTH
        assert len(answer.tokens) == request.sampling.max_new_tokens
        subject.judge(request, answer)


async def require_orphans_end(worker: ServerEngineWorker, subject: Subject) -> None:
    """The server's own process is killed with requests in flight: who asked is told so, and what it leaves behind is
    found and ended."""
    assert worker._server is not None
    assert worker._server._guardian is not None
    guardian = psutil.Process(worker._server._guardian.pid)
    (server,) = guardian.children()
    orphans = server.children(recursive=True)
    assert orphans
    await a_death_is_told(subject, server.kill)
    end = subject.clock.now() + _END_S
    while left := [each for each in (guardian, server, *orphans) if lives(each)]:
        assert subject.clock.now() < end, left
        await subject.clock.sleep(0.1)
