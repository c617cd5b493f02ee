"""When the gate opens, as a run's clock, versions and evaluations tell it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace.experience.gate import Opening
from headrace.experience.sample import GroupKey
from headrace.experience.schedule import Bound
from headrace.observe.spent import ROWS, Activity
from headrace.roles.gate_forecast import GateForecast
from headrace.runtime.signal import Signal
from headrace.weights.version import Version


class World:
    """A flow, engines and a clock that are what the test says."""

    def __init__(self, engines: int = 1) -> None:
        self.time = 0.0
        self.bound: Bound | None = None
        self.batch = 0
        self.is_sealed = self.is_finished = False
        self.version = Version(0, 0)
        self.changed = Signal()
        self.own = [SimpleNamespace(serves=True) for _ in range(engines)]
        self.sleep = SimpleNamespace(is_on=False)
        self.activity = Activity()
        me: Any = self
        self.forecast = GateForecast(me, me, self.activity, me)

    def now(self) -> float:
        return self.time

    def shut_by(self, version: int) -> Bound | None:
        return self.bound

    def takes(self, number: int, at: float) -> None:
        self.time, self.version, self.batch = at, Version(0, number), max(self.batch, number)
        self.changed.notify()

    def opening(self, at: float) -> Opening:
        self.time = at
        return self.forecast.opening()


def test_the_next_version_is_foretold_from_those_that_engines_took() -> None:
    world = World()
    world.bound = "staleness"
    assert world.opening(3.0) == Opening(("version",), None)
    world.takes(1, at=20.0)
    world.takes(2, at=30.0)
    assert world.opening(31.0).seconds == 14.0  # after 20 and 10 s: 15
    world.takes(4, at=40.0)  # 5 s each, one of which was passed over
    assert world.opening(41.0).seconds == 6.5  # of 20, 10, 5 and 5 s
    world.takes(1, at=42.0)  # the run went back: nobody has made that in 2 s
    assert world.opening(43.0).seconds == 6.5


def test_a_version_that_is_made_and_not_taken_is_there_in_a_moment_unless_an_evaluation_holds_the_engine() -> None:
    world = World()
    world.batch = 1
    assert world.opening(5.0) == Opening(("swap",), 0.0)
    with world.activity.training(ROWS):
        with world.activity.evaluation():
            assert world.opening(6.0) == Opening(("evaluation",), None)
            world.time = 30.0  # it has taken 25 s
        with world.activity.evaluation():
            assert world.opening(40.0) == Opening(("evaluation",), 15.0)
    several = World(engines=2)
    several.batch = 1
    with several.activity.training(ROWS), several.activity.evaluation():
        assert several.opening(6.0) == Opening(("swap",), 0.0), "the other one is not held"


def test_nothing_starts_before_the_first_evaluation_nor_beside_the_last() -> None:
    world = World(engines=2)
    with world.activity.evaluation():
        assert world.opening(1.0).awaited == ("evaluation",)
    with world.activity.training(ROWS):
        pass
    with world.activity.evaluation():
        assert world.opening(2.0).awaited == ()
        world.is_finished = True
        assert world.opening(3.0).awaited == ("evaluation",)


def test_engines_that_sleep_or_are_away_are_waited_for() -> None:
    world = World()
    world.sleep.is_on = True
    assert world.opening(1.0).awaited == ("version",)
    world.sleep.is_on = False
    world.own[0].serves = False
    assert world.opening(2.0) == Opening(("engine",), None)


def test_the_end_of_a_group_is_foretold_from_those_before() -> None:
    world, first, second = World(), GroupKey(0, 0, 0), GroupKey(0, 1, 0)
    world.bound = "ahead"
    world.forecast.groups.begin(0.0, first)
    world.forecast.groups.begin(4.0, second)
    assert world.opening(5.0) == Opening(("group",), None)
    world.forecast.groups.end(10.0, first)
    assert world.opening(11.0) == Opening(("group",), 3.0)
    world.is_sealed = True  # nobody enters the batch at hand any more
    assert world.opening(11.0) == Opening(("version",), None)
