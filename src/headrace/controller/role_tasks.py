"""The roles of a training run at work, until the actor has ended; where the trainer is lost, they begin again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.controller.building.wiring import Parts
from headrace.controller.going_back import GoingBack, StoppedGoingBack, is_of_trainer
from headrace.controller.replica_return import ReplicaBack, replica_back
from headrace.controller.supervise import end, see_through, unless
from headrace.roles.columns.functions import FunctionsLost
from headrace.roles.engine_watch import EnginesLost
from headrace.runtime.ground import ColumnsLost, Ground
from headrace.runtime.protocol import Runtime
from headrace.runtime.refs import RefLost
from headrace.runtime.supervision import Measure, Restarts
from headrace.runtime.workers import WorkerLost

_COLUMNS = "columns kept"
"""The watch over whoever knows where columns are."""
_TOLD_S = 15.0
"""In which it tells that they are lost, once somebody misses one."""
_MOST_FILLINGS = 4, 600.0
"""Losses of all columns within so many seconds, or in a row without a batch between, with the last of which the run
stops."""
_MISSED = (ColumnsLost, RefLost)


class Role(Protocol):
    async def run(self) -> Any:
        """Until the run is finished, or it is cancelled."""


@dataclass(frozen=True, slots=True)
class Loop:
    """The roles of a run, in the order in which a group, and the weights that it makes, meet them."""

    rollout: Role
    columns: Sequence[tuple[str, Role]]
    """With their names."""
    critic: Role | None
    actor: Role
    followers: Role
    relays: Role | None
    """Bring versions to where the trainer's memory is not seen."""
    returns: Sequence[Role]
    """Bring back the judges' engines, and a reward model: evaluations ask them, too."""
    evaluator: Role | None
    gap: Role | None
    watch: Role | None
    """Over engines that died."""
    functions: Role
    """Brings the functions worker back."""
    scorer_returns: Sequence[Role] = ()
    """Bring back models that score rows, which nobody needs once all is trained."""


class RoleTasks:
    """Those that lease rows begin again when the run goes back to a commit: actor, critic, and all that fill columns
    for them. The others go on: rollouts, evaluation, the gap sample."""

    def __init__(
        self, loop: Loop, parts: Parts, runtime: Runtime, back: GoingBack, ground: Ground | None = None
    ) -> None:
        """`ground`: of the workers, where columns can be lost with it."""
        self._loop = loop
        self._parts = parts
        self._runtime = runtime
        self._back = back
        self._ground = ground
        self._fillings = Restarts(*_MOST_FILLINGS)
        self._going_on: dict[str, asyncio.Task[Any]] = {}
        self._beside: list[asyncio.Task[Any]] = []
        """Among the columns' tasks, those that no batch needs: returns of replicas, and who tells of a trainer that is
        lost while nobody asks it."""
        self._scorer_returns: list[asyncio.Task[Any]] = []
        """Among the keepers."""

    def keepers(self) -> dict[str, asyncio.Task[Any]]:
        """Those that keep engines and functions at work, by name, begun: from before the first evaluation to behind
        the last."""
        loop = self._loop
        roles = {"weight followers": loop.followers}
        if loop.relays is not None:
            roles["weight relays"] = loop.relays
        roles |= {f"return {index}": role for index, role in enumerate(loop.returns)}
        if loop.watch is not None:
            roles["engine watch"] = loop.watch
        roles["functions worker"] = loop.functions
        scorers = {f"return of scorer {index}": role for index, role in enumerate(loop.scorer_returns)}
        tasks = {name: self._runtime.spawn(role.run(), name) for name, role in (roles | scorers).items()}
        self._scorer_returns = [tasks[name] for name in scorers]
        return tasks

    async def run(self, stopping: asyncio.Task[Any], keepers: Sequence[asyncio.Task[Any]]) -> Exception | None:
        """Until the actor has ended; the first role, or keeper, that fails ends them all, and its error is raised.
        Where no engine is left, or no functions worker comes back, the actor ends in order, as when the run is told to
        stop, and why is returned; and so is what fails in or beside an evaluation that outlasts it. Raises
        StoppedGoingBack; then nothing may be committed but what is being written."""
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
                    left = [self._going_on.get("evaluator"), *self._beside]
                    await see_through(actor, [task for task in others if task not in left], stopping, parts.stop)
                    return lost
                except (WorkerLost, ColumnsLost, RefLost, ReplicaBack) as error:
                    if stopping.done() and any(_raised(task) is error for task in self._beside):
                        columns = [task for task in columns if _raised(task) is not error]
                        continue  # whoever commits is told of what is lost
                    if parts.flow.is_finished and any(_raised(task) is error for task in self._scorer_returns):
                        keepers = self._without_scorers(keepers)
                        continue
                    if stopping.done() or not _may_go_on(error):
                        raise
                    failed = error
                else:
                    if parts.flow.is_finished:
                        keepers = self._without_scorers(keepers)
                        await end(self._scorer_returns)
                    evaluator = self._going_on.get("evaluator")
                    if evaluator is not None and parts.flow.is_finished:
                        try:
                            await unless(stopping, evaluator, keepers)  # what it is at is worth having
                        except Exception as lost:
                            if is_of_trainer(lost):
                                raise
                            return lost
                    return None
                await self._mend(failed, actor, columns, keepers, stopping)
                actor, columns = self._begin()
        finally:
            await end([*columns, *self._going_on.values(), actor])

    def _without_scorers(self, keepers: Sequence[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
        return [task for task in keepers if task not in self._scorer_returns]

    def _begin(self) -> tuple[asyncio.Task[Any], list[asyncio.Task[Any]]]:
        """The actor, and the others that lease rows."""
        loop, spawn = self._loop, self._runtime.spawn
        actor = spawn(loop.actor.run(), "actor")
        self._go_on("rollout", loop.rollout)
        columns = [spawn(role.run(), name) for name, role in loop.columns]
        if loop.critic is not None:
            columns.append(spawn(loop.critic.run(), "critic"))
        clock, groups = self._runtime.clock, self._parts.models.groups
        back = [(group, replica_back(group, clock)) for group in groups if group.may_come_back]
        lost = [(group, group.lost_while_idle()) for group in groups if group.can_be_lost]
        self._beside = [
            *(spawn(one, f"return of a {group.name}'s replica") for group, one in back),
            *(spawn(one, f"loss of an idle {group.name}") for group, one in lost),
        ]
        columns += self._beside
        if loop.evaluator is not None:
            self._go_on("evaluator", loop.evaluator)
        if loop.gap is not None:
            self._go_on("gap sample", loop.gap)
        if self._ground is not None and _COLUMNS not in self._going_on:
            self._going_on[_COLUMNS] = self._runtime.spawn(self._ground.columns_lost(), _COLUMNS)
        return actor, columns

    def _go_on(self, name: str, role: Role) -> None:
        """Begun, unless it is at work, or has failed."""
        task = self._going_on.get(name)
        if task is None or (task.done() and not task.cancelled() and task.exception() is None):
            self._going_on[name] = self._runtime.spawn(role.run(), name)

    async def _mend(
        self,
        failed: WorkerLost | ColumnsLost | RefLost | ReplicaBack,
        actor: asyncio.Task[Any],
        columns: Sequence[asyncio.Task[Any]],
        keepers: Sequence[asyncio.Task[Any]],
        stopping: asyncio.Task[Any],
    ) -> None:
        """Return once roles may begin again: the trainer was lost, or all columns, or both, also one as the other is
        seen to; or a replica of a trainer's is back."""
        ended = await self._end_in_order(actor, columns)
        errors = [failed, *ended]
        # Who asked one that is lost knows more of that than who looks at idle ones.
        lost = next((error for error in (*ended, failed) if isinstance(error, WorkerLost)), None)
        is_back = any(isinstance(error, ReplicaBack) for error in errors)
        empty = await self._told([error for error in errors if isinstance(error, _MISSED)])
        if empty is not None and isinstance(actor.exception(), RefLost):
            raise empty  # in the midst of a batch's steps
        while True:
            if lost is not None:
                missed = await self._go_back(self._back.after(lost, stopping.done), keepers, stopping)
                lost, is_back = None, False
                empty = empty or await self._told(missed)
            elif empty is not None:
                try:
                    await self._fill_again(empty)
                    empty = None
                except WorkerLost as again:
                    if not is_of_trainer(again):
                        raise
                    lost = again
            elif is_back:
                missed = await self._go_back(self._back.take_in(stopping.done), keepers, stopping)
                is_back, empty = False, await self._told(missed)
            else:
                return

    async def _go_back(
        self, going: Coroutine[Any, Any, None], keepers: Sequence[asyncio.Task[Any]], stopping: asyncio.Task[Any]
    ) -> list[ColumnsLost | RefLost]:
        """What goes on meanwhile may fail as at any other time. Gives what it missed of columns. Raises
        StoppedGoingBack."""
        back = self._runtime.spawn(going, "going back")
        others = [*self._going_on.values(), *keepers]
        missed: dict[asyncio.Task[Any], ColumnsLost | RefLost] = {}
        try:
            while not back.done():
                left = [task for task in (stopping, *others) if not task.done()]
                await asyncio.wait([back, *left], return_when=asyncio.FIRST_COMPLETED)
                for task in others:
                    if task.done() and isinstance(error := task.exception(), _MISSED):
                        missed[task] = error
                    elif task.done():
                        task.result()
                if stopping.done() and self._back.is_midway and not back.done():
                    raise StoppedGoingBack  # whoever is healed has all that was trained
            back.result()
        finally:
            await end([back])
        return [*missed.values()]

    async def _told(self, missed: Sequence[ColumnsLost | RefLost]) -> ColumnsLost | None:
        """That all columns are lost, where some are `missed`. Raises the first of these, if it is one column and no
        more."""
        if not missed:
            return None
        watch = self._going_on.get(_COLUMNS)
        if watch is None:
            raise missed[0]
        await asyncio.wait([watch], timeout=_TOLD_S)
        if not watch.done():
            raise missed[0]
        del self._going_on[_COLUMNS]
        lost = watch.exception()
        if not isinstance(lost, ColumnsLost):
            raise lost or missed[0]
        return lost

    async def _fill_again(self, empty: ColumnsLost) -> None:
        """The batch at hand begins again. Samples are read from the journal where they are asked for; what was computed
        of them is computed again. Raises WorkerLost, and then is to be called once more; and the loss where it comes
        too often."""
        parts, flow = self._parts, self._parts.flow
        await parts.turns.train()
        for group in parts.models.groups:
            await group.discard()
        flow.fill_again()
        await parts.actor.go_on()
        if not parts.actor.has_stepped:
            await parts.turns.generate()
        if parts.critic is not None:
            parts.critic.begin_again()
        for name, task in [*self._going_on.items()]:
            if task.done() and not task.cancelled() and isinstance(task.exception(), RefLost):
                del self._going_on[name]
        now, committed = self._runtime.clock.now(), parts.checkpointer.committed
        if self._fillings.after(_COLUMNS, now, batches=flow.batch, committed=committed) is not Measure.RESTART:
            raise ColumnsLost(f"{empty}; that has come {self._fillings.most} times; --resume the run")
        message = f"{empty}; samples are read from the journal, and what was computed of them is computed again"
        parts.recorder.event("columns_lost", {"message": message})

    async def _end_in_order(
        self, actor: asyncio.Task[Any], columns: Sequence[asyncio.Task[Any]]
    ) -> list[BaseException]:
        """The actor is never cancelled between a step and its record. What has failed, which is raised unless the run
        may go on after it."""
        self._parts.stop()
        await asyncio.gather(actor, return_exceptions=True)
        await end(list(columns))
        errors = [
            error for task in (actor, *columns) if not task.cancelled() and (error := task.exception()) is not None
        ]
        for error in errors:
            if not _may_go_on(error):
                raise error
        return errors


def _raised(task: asyncio.Task[Any]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


def _may_go_on(error: BaseException) -> bool:
    """Whether the run may, once the trainer, or all columns, are there again."""
    return is_of_trainer(error) or isinstance(error, (*_MISSED, ReplicaBack))
