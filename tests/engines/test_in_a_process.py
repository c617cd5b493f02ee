"""The embedded engine as a worker in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing

import numpy as np
import psutil
import pytest
from engines_helpers import collect, joined_chunks, prompt, request, serving, tiny_model
from engines_worker import EngineSpec, EngineWorker

from headrace.config import EngineConfig
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.process.processes import Processes
from headrace.runtime.workers import Placement, WorkerLost

WHERE = Placement(process=True, threads=1, deadline_s=60, start_s=120)


async def rest(chunks: AsyncIterator[object]) -> None:
    async for _ in chunks:
        pass


@pytest.mark.slow
@pytest.mark.cpu
def test_it_samples_the_same_tokens_and_a_kill_costs_its_own_requests() -> None:
    async def main() -> None:
        wanted = [
            request(f"r{number}", prompt(number, 5 + number), 20, key=number, stream=True, return_kept=True, top_k=20)
            for number in range(4)
        ]
        async with serving(tiny_model()) as here:
            expected = await asyncio.gather(*(collect(here, one) for one in wanted))

        runtime = InlineRuntime(processes=Processes("engines", packages=["engines_worker"]))
        try:
            engines = await runtime.start(EngineWorker, [EngineSpec(0, EngineConfig())] * 2, WHERE)
            await engines.call("start", what="to start")

            async def from_rank(rank: int, one: object) -> object:
                chunks = engines.stream("generate", one, rank=rank, what="tokens")
                return joined_chunks([chunk async for chunk in chunks])

            got = await asyncio.gather(*(from_rank(place % 2, one) for place, one in enumerate(wanted)))
            for mine, theirs in zip(expected, got, strict=True):
                assert np.array_equal(mine.tokens, theirs.tokens)
                assert np.allclose(mine.logprobs, theirs.logprobs, atol=1e-5)
                assert np.array_equal(mine.kept.data, theirs.kept.data)
                assert mine.finish_reason is theirs.finish_reason

            left = request("left", prompt(1, 5), 100, stream=True)
            async with aclosing(engines.stream("generate", left, rank=0, what="tokens")) as chunks:
                await anext(chunks)
            while await engines.call("running", rank=0, what="its load") != [0]:  # noqa: ASYNC110 (leaving aborts)
                await asyncio.sleep(0.01)

            victim = next(each for each in psutil.Process().children() if "engine/0" in " ".join(each.cmdline()))
            long = request("long", prompt(1, 5), 100, stream=True)
            async with aclosing(engines.stream("generate", long, rank=0, what="tokens")) as chunks:
                await anext(chunks)
                beside = asyncio.ensure_future(from_rank(1, wanted[0]))
                os.kill(victim.pid, signal.SIGKILL)
                with pytest.raises(WorkerLost, match="engine/0 is lost: its process ended with signal SIGKILL"):
                    await rest(chunks)
            assert np.array_equal((await beside).tokens, expected[0].tokens)
            await engines.restart(0)
            await engines.call("start", rank=0, what="to start")
            assert np.array_equal((await from_rank(0, wanted[0])).tokens, expected[0].tokens)
        finally:
            await runtime.close()

    asyncio.run(main())
