"""A replica that the others go on without comes back, in virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.controller.going_back import GoingBack
from headrace.controller.replica_return import ReplicaBack, replica_back
from headrace.controller.role_tasks import Loop, RoleTasks
from headrace.roles.engine_watch import EnginesLost
from headrace.runtime.placing import NoRoom
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import WorkerError, WorkerLost


def no_room() -> WorkerLost:
    lost = WorkerLost(1, "no node has 1 GPU", worker="trainer/1")
    lost.__cause__ = NoRoom("no node has 1 GPU")
    return lost


class Group:
    """For its replica there is room after so many tries."""

    name = "trainer"
    can_be_lost = False

    def __init__(self, *failures: Exception) -> None:
        self.failures = [*failures]
        self.may_come_back = True

    async def make_again(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


class GoesOn:
    async def run(self) -> None:
        await asyncio.Event().wait()


class Acts:
    """The actor: a batch takes ten seconds, and the last one ends the run."""

    has_stepped = False

    def __init__(self, runtime: VirtualRuntime, batches: int) -> None:
        self._runtime = runtime
        self._left = batches
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    async def run(self) -> None:
        self._stopping = False
        while self._left and not self._stopping:
            await self._runtime.clock.sleep(10.0)
            self._left -= 1


def roles_of(runtime: VirtualRuntime, group: Group, back: object, batches: int = 9) -> RoleTasks:
    of: Any = SimpleNamespace
    actor: Any = Acts(runtime, batches)
    parts = of(stop=actor.stop, actor=actor, models=of(groups=[group]), flow=of(is_finished=True))
    more: dict[str, Any] = {"followers": GoesOn(), "relays": None, "returns": (), "functions": GoesOn()}
    loop = Loop(rollout=GoesOn(), columns=(), critic=None, actor=actor, evaluator=None, gap=None, watch=None, **more)
    given: Any = back
    return RoleTasks(loop, parts, runtime, given)


def test_room_is_looked_for_again_and_one_that_fails_as_it_is_made_is_made_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(runtime: VirtualRuntime) -> float:
        group: Any = Group(no_room(), no_room(), WorkerError(1, "OSError", "the model is not there"))
        with pytest.raises(ReplicaBack):
            await replica_back(group, runtime.clock)
        return runtime.clock.now()

    assert run_virtually(main) == 45.0
    (told,) = caplog.messages
    assert told.startswith("a replica of the trainer cannot be made anew yet: ")
    assert "the model is not there" in told


def test_it_is_taken_in_between_two_batches_once() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        group, taken = Group(no_room()), list[float]()

        async def take_in(is_stopping: object) -> None:
            taken.append(runtime.clock.now())
            group.may_come_back = False

        back = SimpleNamespace(take_in=take_in, is_midway=False)
        roles = roles_of(runtime, group, back)
        assert await roles.run(runtime.spawn(GoesOn().run(), "stop request"), []) is None
        assert taken == [20.0], "it is there after 15 s"
        assert runtime.clock.now() == 90.0

    run_virtually(main)


def test_one_that_comes_back_as_the_actor_ends_for_lost_engines_is_not_taken_in() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        async def lose_engines() -> None:
            await runtime.clock.sleep(12.0)
            raise EnginesLost("none comes back")

        roles = roles_of(runtime, Group(no_room()), SimpleNamespace())
        stopping, keeper = runtime.spawn(GoesOn().run(), "stop request"), runtime.spawn(lose_engines(), "watch")
        assert isinstance(await roles.run(stopping, [keeper]), EnginesLost)
        assert runtime.clock.now() == 20.0, "the batch was seen through"

    run_virtually(main)


def test_a_run_that_is_told_to_stop_meanwhile_ends_without_it() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        roles = roles_of(runtime, Group(no_room()), SimpleNamespace())
        stopping = runtime.spawn(runtime.clock.sleep(12.0), "stop request")
        assert await roles.run(stopping, []) is None
        assert runtime.clock.now() == 20.0

    run_virtually(main)


def test_who_is_lost_as_it_is_taken_in_is_seen_to_as_any_other() -> None:
    async def main() -> None:
        of: Any = SimpleNamespace
        parts = of(checkpointer=of(committed=0))
        plan = of(config=of(runtime=of(restarts=of(most=9, window_s=600.0))))
        back = GoingBack(plan, parts, of(), of(clock=None), of())
        lost, seen = WorkerLost(1, "it ended", worker="trainer/1"), list[WorkerLost]()

        async def take_in() -> None:
            raise lost

        async def after(given: WorkerLost, is_stopping: object) -> None:
            seen.append(given)

        back._healing = of(take_in=take_in)
        back.after = after  # type: ignore[method-assign, assignment]
        await back.take_in()
        assert seen == [lost]
        lost = WorkerLost(0, "it ended", worker="functions/0")
        with pytest.raises(WorkerLost, match="functions/0"):
            await back.take_in()

    asyncio.run(main())
