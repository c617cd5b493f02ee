"""The evaluator pins a version, records each set that is due with it, and lets the engines go, whatever happens."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from role_pool import Line, Pool, Scene, play

from headrace.engines.completions import NotServed
from headrace.engines.pool_state import EngineState
from headrace.roles.evaluator import EvaluatorRole
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.signal import Signal
from headrace.weights.version import Version


class HeldOut:
    """A set that takes 10 s; `ends` has what other than a result its next evaluations come to."""

    def __init__(self, name: str, every: int | None = None, ends: list[Any] | None = None) -> None:
        self.held_out = SimpleNamespace(name=name, every=every)
        self.ends = ends or []
        self.running = 0
        self.scene: Scene
        self.evaluating: list[bool] = []

    async def run(self, version: Version, place: Any) -> dict[str, Any]:
        assert place.only == (0,), "by the engines that are held"
        self.evaluating.append(self.scene.activity.evaluating)
        self.running += 1
        try:
            end = self.ends.pop(0) if self.ends else None
            await self.scene.settle(10)
            if end is not None:
                await end()
            return {"set": self.held_out.name}
        finally:
            self.running -= 1


class Case:
    def __init__(self, *sets: HeldOut, recorded: dict[str, int] | None = None) -> None:
        self.pool, self.sets = Pool(), sets
        self.flow = SimpleNamespace(is_finished=False, changed=Signal(), batch=5)
        self.recorded = recorded or {}
        self.told: list[Any] = []

    def make(self, scene: Scene) -> EvaluatorRole:
        for each in self.sets:
            each.scene = scene
        pool: Any = self.pool
        sets: Any = self.sets
        self.role = EvaluatorRole(
            scene.context,
            pool,
            sets,
            lambda version, result: self.told.append(("record", str(version), result)),
            recorded=self.recorded,
            begins=lambda version, name: self.told.append(("begins", str(version), name)),
            ended=lambda version, name, result: self.told.append(("ended", name, result is not None)),
        )
        return self.role

    def play(self, body: Any) -> None:
        async def watched(scene: Scene, running: asyncio.Task[Any]) -> None:
            await body(scene, running)
            assert all(pin.released == 1 for pin in self.pool.pins)
            assert not any(each.running for each in self.sets)

        play(lambda: self.flow, self.make, watched)

    async def reach(self, scene: Scene, number: int, seconds: float = 50) -> None:
        for member in self.pool.members:
            member.version = Version(0, number)
        self.flow.changed.notify()
        await scene.settle(seconds)

    @property
    def recorded_of(self) -> list[tuple[str, str]]:
        return [(each[1], each[2]["set"]) for each in self.told if each[0] == "record"]


def test_each_set_is_evaluated_when_its_time_has_come_and_once() -> None:
    case = Case(HeldOut("often", 2), HeldOut("rare", 4), HeldOut("never"))

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        for number in (0, 1, 2, 3, 5, 5):
            await case.reach(scene, number)
        assert case.recorded_of == [("v2", "often"), ("v5", "often"), ("v5", "rare")]
        assert case.told[:3] == [
            ("begins", "v2", "often"),
            ("record", "v2", {"set": "often", "seconds": 10.0, "versions_behind": 3}),
            ("ended", "often", True),
        ]
        assert len(case.pool.pins) == 2, "sets that are due together are of one version"
        assert case.sets[0].evaluating == [True, True]
        assert not scene.activity.evaluating
        case.flow.is_finished = True
        case.flow.changed.notify()
        await scene.settle()
        assert running.done()

    case.play(body)


def test_before_and_after_a_run_what_has_no_record_is_evaluated() -> None:
    case = Case(HeldOut("new"), HeldOut("known"), recorded={"known": 3})

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle()
        assert running.done(), "nothing comes in between"
        await case.role.before()
        assert case.recorded_of == [("v0", "new")]
        await case.reach(scene, 3)
        await case.role.after()
        await case.role.after()
        assert case.recorded_of == [("v0", "new"), ("v3", "new")]

    case.play(body)


@pytest.mark.parametrize("deaths", [1, 2])
def test_one_whose_engines_died_begins_again_once_on_the_newest_and_is_then_given_up(deaths: int) -> None:
    async def dies() -> None:
        case.pool.pins[-1].is_lost = True
        case.pool.members[0].version = Version(0, 4)
        case.pool.changed.notify()
        await asyncio.Event().wait()

    case = Case(HeldOut("first", 2), HeldOut("dies", 2, [dies] * deaths), HeldOut("last", 2))

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await case.reach(scene, 2, seconds=30)
        case.flow.is_finished = True
        await scene.settle(100)
        again = [("v4", "dies"), ("v4", "last")] if deaths == 1 else []
        assert case.recorded_of == [("v2", "first"), *again]
        assert scene.events[0][0] == "evaluation_again"
        assert scene.events[0][1]["message"].endswith("was lost: dies, last")
        given_up = [data["message"] for kind, data in scene.events if kind == "evaluation_given_up"]
        assert len(given_up) == (0 if deaths == 1 else 2)
        assert all("lost again" in each for each in given_up)
        assert (("ended", "dies", False) in case.told) is (deaths == 2)

    case.play(body)


@pytest.mark.parametrize(
    "error",
    [WaitTimeout("the evaluation of v2", 60.0), NotServed("no engine came within 600 s")],
    ids=lambda e: type(e).__name__,
)
def test_one_that_takes_too_long_or_is_not_served_is_given_up_and_the_others_go_on(error: Exception) -> None:
    async def late() -> None:
        raise error

    case = Case(HeldOut("late", 2, [late]), HeldOut("next", 2))

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await case.reach(scene, 2)
        assert case.recorded_of == [("v2", "next")]
        assert ("ended", "late", False) in case.told
        assert scene.kinds == ["evaluation_given_up"]

    case.play(body)


def test_a_version_that_the_run_goes_back_behind_is_left_without_a_record() -> None:
    case = Case(HeldOut("first", 2), HeldOut("second", 2), recorded={"second": 1})

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await case.reach(scene, 4, seconds=15)
        assert case.recorded_of == [("v4", "first")]
        case.pool.line = Line(3)
        case.role.go_back(3, {"first": 2, "second": 1})
        await case.reach(scene, 3)
        assert case.recorded_of == [("v4", "first"), ("v3", "second")], "of the first there is a record of version 2"
        assert all(pin.released == 1 for pin in case.pool.pins)

    case.play(body)


def test_what_it_raises_else_is_raised_and_the_engines_are_let_go() -> None:
    async def fault() -> None:
        raise KeyError("a fault of ours")

    case = Case(HeldOut("fault", 1, [fault]))

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await case.reach(scene, 1)
        with pytest.raises(KeyError):
            await running

    case.play(body)


def test_an_engine_to_pin_is_waited_for() -> None:
    case = Case(HeldOut("one", 1))

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        case.pool.members[0].state = EngineState.EJECTED
        await case.reach(scene, 1, seconds=2_000)
        assert case.pool.pins == []
        case.pool.members[0].state = EngineState.SERVING
        case.pool.changed.notify()
        await scene.settle(20)
        assert case.recorded_of == [("v1", "one")]

    case.play(body)
