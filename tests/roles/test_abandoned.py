"""An answer that comes when nobody waits any more keeps nothing in memory."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import numpy as np

from headrace.roles.abandoned import freed_if_left
from headrace.runtime.refs import Ref
from headrace.runtime.virtual import VirtualRuntime, run_virtually


def test_refs_of_an_answer_that_nobody_waits_for_are_freed() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        def put() -> list[Ref]:
            return [runtime.put({"values": np.zeros(3, np.float32)}) for _ in range(2)]

        async def asking() -> dict[str, tuple[list[Ref], float]]:
            await runtime.clock.sleep(5.0)
            return {"values": (put(), 1.0)}

        found = await freed_if_left(runtime, runtime.refs, asking(), "a pass")
        assert runtime.kept == 2, "who waits has them"
        left = asyncio.ensure_future(freed_if_left(runtime, runtime.refs, asking(), "a pass"))
        await runtime.clock.sleep(1.0)
        left.cancel()
        with suppress(asyncio.CancelledError):
            await left
        await runtime.clock.sleep(10.0)
        assert runtime.kept == 2, "those that came late are freed"
        for ref in found["values"][0]:
            runtime.free(ref)

    run_virtually(main)
