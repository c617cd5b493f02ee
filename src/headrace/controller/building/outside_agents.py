"""What is told of the tasks of a run: to agents outside where they are, and to the user that nobody asks for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.controller.planning.plan import Plan
from headrace.observe.events import EventSink
from headrace.rollout.outside_tasks import OutsideTasks
from headrace.rollout.workflow import outside_player
from headrace.runtime.protocol import Services, WaitTimeout
from headrace.store.media.files import Files, write_whole
from headrace.store.run_store import GATEWAY_NAME

QUIET_S = 30.0
"""Tasks that have waited for so long while no agent asked are told of."""


@asynccontextmanager
async def tasks_told(
    plan: Plan, folder: Path, services: Services, files: Files, event: EventSink, tell: Callable[[str], None]
) -> AsyncGenerator[None, None]:
    """While it is entered `gateway.json` says where the tasks are, if the run has any; `tell` is given a line, and
    `event` what is recorded."""
    player = outside_player(plan.workflow)
    if player is None:
        yield
        return
    where = f"{player.tasks.address}/tasks"
    told = {"tasks": where, "model": plan.config.gateway.model_name, "token_env": player.config.token_env}
    write_whole(folder / GATEWAY_NAME, json.dumps(told, indent=1).encode() + b"\n", files)
    event("gateway", {"tasks": where})
    tell(f"rollout.agent: agents outside are given tasks at POST {where}")
    watch = services.spawn(_unattended(player.tasks, services, event), "agents outside")
    try:
        yield
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        files.remove(folder / GATEWAY_NAME)


async def _unattended(tasks: OutsideTasks, services: Services, event: EventSink) -> None:
    """Tells, once each time, that tasks wait and nobody asks."""
    is_told = False
    while True:
        try:
            await tasks.changed.wait(services.clock, QUIET_S, tasks.describe())
        except WaitTimeout:
            if tasks.is_unattended and not is_told:
                event("waiting", {"role": "rollout", "message": tasks.describe()})
                is_told = True
        is_told = is_told and tasks.is_unattended
