"""The roles of a training run at work, until the actor has ended; where the trainer is lost, they begin again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headrace.controller.going_back import GoingBack, is_of_trainer
from headrace.controller.supervise import end, see_through, unless
from headrace.controller.wiring import Parts
from headrace.roles.engine_watch import EnginesLost
from headrace.roles.functions import FunctionsLost
from headrace.runtime.protocol import Runtime
from headrace.runtime.workers import WorkerLost


class RoleTasks:
    """Those that lease rows begin again when the run goes back to a commit: actor, critic, and all that fill columns
    for them. The others go on: rollouts, evaluation, the gap sample."""

    def __init__(self, parts: Parts, runtime: Runtime, back: GoingBack) -> None:
        self._parts = parts
        self._runtime = runtime
        self._back = back
        self._going_on: dict[str, asyncio.Task[Any]] = {}

    async def run(
        self, stopping: asyncio.Task[Any], keepers: Sequence[asyncio.Task[Any]]
    ) -> EnginesLost | FunctionsLost | None:
        """Until the actor has ended; the first role, or keeper, that fails ends them all, and its error is raised.
        Where no engine is left, or no functions worker comes back, the actor ends in order, as when the run is told to
        stop, and why is returned."""
        parts = self._parts
        actor, columns = self._begin()
        try:
            while True:
                others = [*columns, *self._going_on.values()]
                try:
                    await see_through(actor, [*others, *keepers], stopping, parts.stop)
                except (EnginesLost, FunctionsLost) as lost:
                    if actor.done() and actor.exception() is not None:
                        raise  # in the midst of a batch: there is nothing to commit
                    parts.stop()
                    evaluator = self._going_on.get("evaluator")
                    await see_through(actor, [task for task in others if task is not evaluator], stopping, parts.stop)
                    return lost
                except WorkerLost as lost:
                    if stopping.done() or not is_of_trainer(lost):
                        raise
                    await self._go_back(lost, actor, columns, keepers)
                    actor, columns = self._begin()
                    continue
                evaluator = self._going_on.get("evaluator")
                if evaluator is not None and parts.flow.is_finished:
                    await unless(stopping, evaluator)  # what it is at is worth having
                return None
        finally:
            await end([*columns, *self._going_on.values(), actor])

    def _begin(self) -> tuple[asyncio.Task[Any], list[asyncio.Task[Any]]]:
        """The actor, and the others that lease rows."""
        parts, spawn = self._parts, self._runtime.spawn
        actor = spawn(parts.actor.run(), "actor")
        self._go_on("rollout", parts.rollout)
        columns = [
            spawn(parts.filter.run(), "filter"),
            *(spawn(stage.run(), "stage") for stage in parts.stages),
            *(spawn(scorer.run(), "scorer") for scorer in parts.scorers),
        ]
        if parts.advantages is not None:
            columns.append(spawn(parts.advantages.run(), "advantages"))
        if parts.critic is not None:
            columns.append(spawn(parts.critic.run(), "critic"))
        if parts.evaluator is not None:
            self._go_on("evaluator", parts.evaluator)
        if parts.gap is not None:
            self._go_on("gap sample", parts.gap)
        return actor, columns

    def _go_on(self, name: str, role: Any) -> None:
        """Begun, unless it is at work, or has failed."""
        task = self._going_on.get(name)
        if task is None or (task.done() and not task.cancelled() and task.exception() is None):
            self._going_on[name] = self._runtime.spawn(role.run(), name)

    async def _go_back(
        self,
        lost: WorkerLost,
        actor: asyncio.Task[Any],
        columns: Sequence[asyncio.Task[Any]],
        keepers: Sequence[asyncio.Task[Any]],
    ) -> None:
        """What goes on meanwhile may fail as at any other time."""
        await self._end_in_order(actor, columns)
        back = self._runtime.spawn(self._back.after(lost), "going back")
        others = [*self._going_on.values(), *keepers]
        try:
            while not back.done():
                left = [task for task in others if not task.done()]
                await asyncio.wait([back, *left], return_when=asyncio.FIRST_COMPLETED)
                for task in (*others, back):
                    if task.done():
                        task.result()
        finally:
            await end([back])

    async def _end_in_order(self, actor: asyncio.Task[Any], columns: Sequence[asyncio.Task[Any]]) -> None:
        """The actor is never cancelled between a step and its record. Raises what has failed besides."""
        self._parts.stop()
        await asyncio.gather(actor, return_exceptions=True)
        await end(list(columns))
        for task in (actor, *columns):
            error = None if task.cancelled() else task.exception()
            if error is not None and not is_of_trainer(error):
                raise error
