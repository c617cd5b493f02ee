"""What surrounds the roles of every run: rewards, the view, the end of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headrace.controller.building.reward_pools import RewardPools, reward_pools
from headrace.controller.planning.plan import Plan
from headrace.controller.recorder import Recorder
from headrace.experience.sample import GroupKey
from headrace.observe.run_record import RunWatcher
from headrace.rewards.judge import Ask
from headrace.rewards.reward_pool import RewardPool
from headrace.runtime.protocol import Runtime
from headrace.store import Restored, RunReader, RunStore
from headrace.viewer.terminal.latest import LatestRollouts
from headrace.viewer.terminal.showing import View, watch
from headrace.viewer.terminal.snapshot import Snapshot, take_snapshot


def tell_of_damage(recorder: Recorder, store: RunStore, restored: Restored) -> None:
    for row in restored.damaged:
        if row.offset is not None:
            file, group = store.journal.path(row.offset.segment, row.offset.writer), GroupKey(*row.key)
            message = f"{file} is damaged at byte {row.offset.offset}: group {group} is generated again"
            recorder.event("reissued", {"prompt": row.prompt_id, "message": message})


async def unless(
    stopping: asyncio.Task[Any], task: asyncio.Task[Any], others: Sequence[asyncio.Task[Any]] = ()
) -> None:
    """Wait for `task`, or cancel it when the run is told to stop; or when one of the others fails, whose error is
    raised."""
    waiting: set[asyncio.Task[Any]] = {stopping, task, *others}
    try:
        while not (task.done() or stopping.done()):
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in others:
                if each in done and not task.done():
                    each.result()
        if task.done():
            task.result()
    finally:
        await end([task])


async def see_through(
    leading: asyncio.Task[Any],
    others: Sequence[asyncio.Task[Any]],
    stopping: asyncio.Task[Any],
    stop: Callable[[], None],
) -> None:
    """Wait until `leading` has ended; the first role that fails ends the wait, and its error is raised. `stop` is
    called once the run is told to stop."""
    waiting: set[asyncio.Task[Any]] = {leading, stopping, *others}
    while not leading.done():
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if stopping in done:
            stop()
        for task in (leading, *others):
            if task in done:
                task.result()


async def end(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def rewards(plan: Plan, folder: Path, runtime: Runtime, ask: Ask) -> AsyncGenerator[RewardPools]:
    """Not started where nothing is scored, or rollout workers have their own. `ask`: of the judges."""
    config, clock = plan.config, runtime.clock
    if not plan.needs_engine or plan.rollout_workers:
        yield RewardPools(RewardPool(config.reward, clock=clock), {})
        return
    async with reward_pools(plan, clock, ask, folder / "logs" / "reward.log") as pools:
        yield pools


@asynccontextmanager
async def watching(view: View | None, folder: Path, recorder: Recorder, runtime: Runtime) -> AsyncGenerator[None]:
    if view is None:
        yield
        return
    with RunReader(folder) as reader:
        watcher = RunWatcher(reader, live=lambda: (recorder.branch, recorder.totals()))
        rollouts = LatestRollouts(folder)

        def take() -> Snapshot:
            record = watcher.read()
            return take_snapshot(record, rollouts.read(record.number))

        task = runtime.spawn(watch(view, take, runtime.clock), "view")
        try:
            yield
        finally:
            await end([task])
