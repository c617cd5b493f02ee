"""Brings the models of a run to what it begins with. If the trainer or the critic is lost before roles are at work,
there is nothing to go back to: it is made anew, and begins with the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from headrace.controller.building.models import Models
from headrace.controller.going_back import is_of_trainer, kind_of_lost
from headrace.controller.planning.origin import begin_from
from headrace.controller.planning.plan import Plan
from headrace.runtime.at_start import anew_if_lost
from headrace.runtime.protocol import Clock
from headrace.runtime.together import together
from headrace.runtime.workers import WorkerLost
from headrace.store import Restored
from headrace.weights.version import INITIAL, Version

T = TypeVar("T")


class ModelsAtStart:
    def __init__(self, plan: Plan, models: Models, restored: Restored | None, clock: Clock) -> None:
        """`restored`: what the run is resumed from."""
        self._plan = plan
        self._models = models
        self._restored = restored
        self._clock = clock
        self.version = INITIAL if restored is None else Version(restored.branch, restored.number)

    async def bring(self) -> None:
        """Models to what the run begins with, and its version to whoever receives weights. Raises WorkerLost where one
        of them is lost again and again."""
        await self._with_trainers(self._bring)

    async def rest(self) -> float:
        """Once models are there: what those that train compute a second, who then give back their memory where the
        first turn is the engines'. Raises as `bring`."""
        return await self._with_trainers(self._rest)

    async def _bring(self, again: bool) -> None:
        """`again`: the trainer that was lost may have published it, where that lasts."""
        models = self._models
        await load(self._plan, models, None if self._restored is None else self._restored.path)
        if models.engines.is_absent and self.version == INITIAL:
            return
        # Version 0 too: an engine that dies comes back with it.
        if not (again and not models.engines.is_absent and models.trainer.receiver().latest() == self.version):
            await models.trainer.publish(self.version)

    async def _rest(self, again: bool) -> float:
        models = self._models
        if again:
            await together(group.wake() for group in models.groups)
            await self._bring(again)
        rate = await models.trainer.rate()
        if self._plan.config.engine.colocated or models.engines.lent:
            await together(group.sleep() for group in models.groups)
        return rate

    async def _with_trainers(self, work: Callable[[bool], Awaitable[T]]) -> T:
        """What `work` gives, told whether it is done again, with one that was lost made anew."""
        models, broken = self._models, ""

        async def attempt(losses: int) -> T:
            nonlocal broken
            try:
                if losses:
                    await models.renew[broken]()
                return await work(losses > 0)
            except WorkerLost as lost:
                broken = kind_of_lost(lost)
                raise

        def is_mended(lost: WorkerLost) -> bool:
            return is_of_trainer(lost) and broken in models.renew

        return await anew_if_lost(attempt, self._clock, is_mended)


async def load(plan: Plan, models: Models, path: Path | None) -> None:
    """Bring models that are as they were made to what the checkpoint in `path` holds; None: to version 0."""
    if path is not None:
        await models.trainer.load(path)
        for name, other in models.parts.items():
            await other.load(path / name)
    elif plan.origin is not None:
        await begin_from(plan.origin, models.trainer, models.critic, plan.config)
