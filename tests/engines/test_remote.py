"""What is known of an engine in another process, by the statuses that come from it: in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from headrace.engines.pool import EnginePool
from headrace.engines.protocol import EngineStats
from headrace.engines.remote import RemoteEngine
from headrace.engines.remote_types import EngineStatus
from headrace.runtime.patience import Patience
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.weights.version import INITIAL


class Elsewhere:
    """A worker that says what it is told to say."""

    here = None

    def __init__(self) -> None:
        self.statuses: asyncio.Queue[EngineStatus] = asyncio.Queue()

    async def call(self, method: str, *args: Any, what: str, seconds: float | None = None) -> EngineStatus:
        return status(idle_s=0.0)

    async def stream(
        self, method: str, *args: Any, what: str, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        yield [] if method == "outputs" else status(idle_s=0.0)
        while True:
            item = await self.statuses.get() if method == "statuses" else await asyncio.Event().wait()
            yield item


def status(idle_s: float, running: int = 0) -> EngineStatus:
    return EngineStatus(INITIAL, 8, EngineStats(running, 0, 0, 0, 0, 0.0, 0.0, idle_s=idle_s))


def test_it_rests_until_it_is_heard_to_work_and_what_was_too_much_is_made_up_for() -> None:
    """It works from second 1.0 to 1.5, and again from 2.0 on; each time that is heard 0.1 s later."""

    async def run(runtime: VirtualRuntime) -> None:
        clock, worker = runtime.clock, Elsewhere()
        remote = RemoteEngine(worker, runtime, client="controller")
        await remote.attach()

        async def idle_s(at: float, heard: EngineStatus | None = None) -> float:
            await clock.sleep(at - clock.now())
            if heard is not None:
                worker.statuses.put_nowait(heard)
                await clock.sleep(0.001)
            return remote.stats().idle_s

        assert await idle_s(0.5) == pytest.approx(0.5)
        assert await idle_s(1.1) == pytest.approx(1.1)
        assert await idle_s(1.1, status(1.0, running=1)) == pytest.approx(1.1)
        assert await idle_s(1.4) == pytest.approx(1.1), "it works"
        assert await idle_s(1.6, status(1.1)) == pytest.approx(1.101)
        assert await idle_s(2.1) == pytest.approx(1.6)
        assert await idle_s(2.1, status(1.5, running=1)) == pytest.approx(1.6, abs=0.002)
        assert await idle_s(2.6, status(1.5)) == pytest.approx(1.6, abs=0.002), "no more, though it was 0.1 s twice"
        assert await idle_s(3.0) == pytest.approx(1.9, abs=0.002)
        await remote.detach()

    run_virtually(run)


def test_of_one_that_falls_silent_the_clocks_of_who_waits_stand_still() -> None:
    async def run(runtime: VirtualRuntime) -> None:
        clock, worker = runtime.clock, Elsewhere()
        remote = RemoteEngine(worker, runtime, client="controller")
        await remote.attach()
        pool = EnginePool([remote], clock)
        patience = Patience(clock, 20.0)
        with pool.asked(pool.members[0], None, 4, [patience.still]):
            for _ in range(6):
                await clock.sleep(0.5)
                worker.statuses.put_nowait(status(0.0, running=1))
            await clock.sleep(27.0)  # it hangs
            assert 20.0 - 3.0 - 4.0 <= patience.left() <= 20.0 - 3.0 - 3.0, "as soon as it was three seconds silent"
            assert pool.outage.stands
            left = patience.left()
            worker.statuses.put_nowait(status(0.0, running=1))
            await clock.sleep(1.0)
            assert patience.left() == pytest.approx(left - 1.0)
            assert not pool.outage.stands
            await clock.sleep(9.0)
            left = patience.left()
        await clock.sleep(5.0)
        assert patience.left() == pytest.approx(left - 5.0), "it waits for it no more"
        await remote.detach()

    run_virtually(run)
