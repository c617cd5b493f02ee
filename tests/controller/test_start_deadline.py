"""A server has as long to be up as `engine.start_deadline_s` says, however it comes to the run: in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from controller_jobs import make_job

from headrace.config import TrainConfig, load_config
from headrace.controller.building.engine_workers import load_engines
from headrace.controller.planning.plan import Plan, make_plan
from headrace.engines.member import NO_STATS
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import EngineError
from headrace.engines.remote_types import EngineStatus
from headrace.runtime.protocol import Clock
from headrace.runtime.signal import Signal
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import Handle
from headrace.weights.version import INITIAL


class Slow:
    """Workers whose servers are up after `up_s`."""

    def __init__(self, clock: Clock, up_s: float, count: int) -> None:
        self._clock = clock
        self._up_s = up_s
        self.handles = [Handle(f"engine/{rank}", rank, "") for rank in range(count)]
        self.lost: dict[int, str] = {}
        self.changed = Signal()

    async def call(self, method: str, *args: Any, rank: int, what: str, seconds: float | None = None) -> list[Any]:
        if method == "start":
            assert seconds is not None
            await self._clock.wait_for(self._clock.sleep(self._up_s), seconds, what)
        return [EngineStatus(INITIAL, 8, NO_STATS)]

    async def stream(
        self, method: str, *args: Any, rank: int, what: str, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        yield [] if method == "outputs" else EngineStatus(INITIAL, 8, NO_STATS)
        await asyncio.Event().wait()

    def here(self, rank: int) -> object | None:
        return None

    async def restart(self, rank: int) -> None:
        pass

    async def add(self, spec: object) -> int:
        rank = len(self.handles)
        self.handles.append(Handle(f"engine/{rank}", rank, ""))
        return rank


async def pool_of(runtime: VirtualRuntime, plan: Plan, folder: Path, up_s: float) -> EnginePool:
    async def start(kind: Any, specs: Any, where: Any) -> Slow:
        return Slow(runtime.clock, up_s, len(specs))

    slow: Any = SimpleNamespace(start=start, clock=runtime.clock, spawn=runtime.spawn)
    return await load_engines(plan, slow, folder)


def test_it_is_waited_for_as_it_starts_as_it_comes_back_and_where_it_is_one_more(tmp_path: Path) -> None:
    plan = make_plan(load_config(TrainConfig, make_job(tmp_path, engine__kind="vllm", engine__start_deadline_s=3600)))

    async def main(runtime: VirtualRuntime) -> None:
        pool = await pool_of(runtime, plan, tmp_path, up_s=2400.0)
        await pool.start()
        (member,) = pool.members
        assert runtime.clock.now() == pytest.approx(2400.0, abs=1.0)
        assert member.revive is not None
        back = await member.revive(member.engine, None)
        assert pool.hires is not None
        engine, _ = await pool.hires.hire()
        await engine.start()
        assert runtime.clock.now() == pytest.approx(7200.0, abs=3.0)
        for each in (member.engine, back, engine):
            await each.stop()

    run_virtually(main)


def test_one_that_does_not_answer_is_not_waited_for_much_longer(tmp_path: Path) -> None:
    """Longer than 600 s by what it may take to meet the server."""
    plan = make_plan(load_config(TrainConfig, make_job(tmp_path, engine__kind="vllm")))

    async def main(runtime: VirtualRuntime) -> None:
        pool = await pool_of(runtime, plan, tmp_path, up_s=2400.0)
        with pytest.raises(EngineError, match=r"waited 1800\.0 s for the engine to start"):
            await pool.start()

    run_virtually(main)
