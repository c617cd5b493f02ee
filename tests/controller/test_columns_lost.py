"""All columns are lost, at about the time that the trainer is, and the run goes on from the last commit within its
process; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from simulated_jobs import check, job

from headrace.config import TrainConfig
from headrace.controller.role_tasks import Loop, RoleTasks
from headrace.controller.simulation.hazards import TrainingFaults
from headrace.controller.simulation.simulated_rollouts import RolloutFaults
from headrace.controller.simulation.simulated_run import Faults, Outcome, simulate
from headrace.runtime.ground import ColumnsLost
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import WorkerLost

CONFIG = job(algorithm__recipe="ppo", trainer__batches=4, rollout__samples_per_prompt=2)


def lost(
    *columns: float, deaths: tuple[tuple[str, int], ...] = (), config: TrainConfig = CONFIG, workers: int = 2
) -> Outcome:
    """`workers`: that play, and have journals; with none the controller plays, and has one."""
    training, rollout = TrainingFaults(deaths=deaths), RolloutFaults(workers=workers)
    return simulate(config, 3, Faults(training=training, rollout=rollout, columns_lost=columns), limit_s=3_000.0)


def told(outcome: Outcome) -> list[str]:
    """Of losses, and what was done about them."""
    kinds = ("trainer_lost", "went_back", "columns_lost")
    return [event.kind for event in outcome.record.events if event.kind in kinds]


@cache
def lost_at(who: str) -> float:
    """In seconds of the clock, by its fourth pass, where nothing else is lost."""
    alone = lost(deaths=((who, 4),))
    (event,) = [event for event in alone.record.events if event.kind == "trainer_lost"]
    return event.at - alone.record.events[0].at


@pytest.mark.parametrize("workers", [0, 2])
def test_columns_that_are_lost_are_computed_again(workers: int) -> None:
    found = lost(4.0, workers=workers)
    assert [life.end for life in found.lives] == ["finished"]
    assert told(found) == ["columns_lost"]
    assert found.took["columns lost"] == 1
    check(found, CONFIG)


@pytest.mark.parametrize(
    ("who", "later_s"), [("actor", -1.1), ("critic", -0.9), ("actor", -0.1), ("critic", 0.5), ("actor", 4.0)]
)
def test_a_trainer_that_is_lost_at_about_the_same_time_costs_no_life(who: str, later_s: float) -> None:
    """The columns before it, so that it is known before it or behind it; or while the run goes back, which takes five
    seconds."""
    found = lost(lost_at(who) + later_s, deaths=((who, 4),))
    assert [life.end for life in found.lives] == ["finished"]
    assert sorted(told(found)) == ["columns_lost", "trainer_lost", "went_back"]
    check(found, CONFIG)


def test_what_was_read_from_the_journal_is_read_again_where_it_is_lost_too() -> None:
    found = lost(4.0, 5.5)
    assert [life.end for life in found.lives] == ["finished"]
    assert told(found) == ["columns_lost"] * 2
    check(found, CONFIG)


def test_samples_of_batches_that_were_taken_back_are_read_from_the_journal() -> None:
    """Lost once the run has gone back, which had put them."""
    config = CONFIG.model_copy(update={"checkpoint": CONFIG.checkpoint.model_copy(update={"every": 9})})
    alone = lost(deaths=(("actor", 4),), config=config)
    (back,) = [event.at for event in alone.record.events if event.kind == "went_back"]
    found = lost(back - alone.record.events[0].at + 0.5, deaths=(("actor", 4),), config=config)
    assert [life.end for life in found.lives] == ["finished"]
    assert told(found) == ["trainer_lost", "went_back", "columns_lost"]
    check(found, config)


def test_samples_of_groups_that_were_finished_before_a_resume_are_read_from_the_journal() -> None:
    faults = Faults(rollout=RolloutFaults(workers=2), power_cuts_at=(5.0,), restart_s=1.0, columns_lost=(8.0,))
    found = simulate(CONFIG, 3, faults, limit_s=3_000.0)
    assert [life.end for life in found.lives] == ["power cut", "finished"]
    assert found.took["columns lost"] == 1
    check(found, CONFIG)


class Ground:
    def __init__(self) -> None:
        self.lost = asyncio.Event()

    async def ended(self) -> NoReturn:
        raise AssertionError("nobody asks")

    async def columns_lost(self) -> NoReturn:
        await self.lost.wait()
        self.lost.clear()
        raise ColumnsLost("the shelf has ended")


class Acts:
    """The actor as `RoleTasks` knows it: it trains until it is told to stop, or what a test has it do."""

    has_stepped = False

    def __init__(self, *lives: Callable[[Acts], Awaitable[None]]) -> None:
        self._lives = [*lives]
        self.stopped = asyncio.Event()

    async def run(self) -> None:
        self.stopped.clear()
        if self._lives:
            await self._lives.pop(0)(self)

    async def go_on(self) -> None: ...


class GoesOn:
    async def run(self) -> None:
        await asyncio.Event().wait()


class Groups:
    """Discards what was accumulated, unless its trainer is lost."""

    may_come_back = can_be_lost = False

    def __init__(self, *losses: WorkerLost) -> None:
        self._losses = [*losses]

    async def discard(self) -> None:
        if self._losses:
            raise self._losses.pop(0)


def trainer(rank: int) -> WorkerLost:
    return WorkerLost(rank, "it ended", worker=f"trainer/{rank}")


async def mended(
    runtime: VirtualRuntime,
    actor: Acts,
    ground: Ground,
    discarding: tuple[WorkerLost, ...] = (),
    meanwhile: Callable[[], None] = lambda: None,
    evaluator: GoesOn | None = None,
) -> list[str]:
    """What the roles did about losses until the actor had ended. `meanwhile`: called in the midst of going back."""
    done, of = list[str](), SimpleNamespace

    async def nothing() -> None: ...

    class Back:
        async def after(self, lost: WorkerLost, is_stopping: object) -> None:
            await runtime.clock.sleep(2.0)
            meanwhile()
            await runtime.clock.sleep(3.0)
            done.append(f"back after {lost.worker}")

    parts: Any = of(
        stop=actor.stopped.set,
        actor=actor,
        critic=None,
        checkpointer=of(committed=0),
        flow=of(batch=1, is_finished=False, fill_again=lambda: done.append("filled again")),
        models=of(groups=[Groups(*discarding)]),
        recorder=of(event=lambda kind, data: done.append(kind)),
        turns=of(train=nothing, generate=nothing),
    )
    others: dict[str, Any] = {"followers": GoesOn(), "relays": None, "returns": (), "functions": GoesOn()}
    loop = Loop(
        rollout=GoesOn(), columns=(), critic=None, actor=actor, evaluator=evaluator, gap=None, watch=None, **others
    )
    back: Any = Back()
    roles = RoleTasks(loop, parts, runtime, back, ground)
    await roles.run(runtime.spawn(GoesOn().run(), "stop request"), [])
    return done


def test_columns_that_are_lost_while_the_run_goes_back_are_filled_again_behind_it() -> None:
    async def main(runtime: VirtualRuntime) -> list[str]:
        async def loses(actor: Acts) -> None:
            raise trainer(0)

        ground = Ground()
        return await mended(runtime, Acts(loses), ground, meanwhile=ground.lost.set)

    assert run_virtually(main) == ["back after trainer/0", "filled again", "columns_lost"]


def test_who_misses_columns_while_the_run_goes_back_is_begun_again() -> None:
    """It is told of one column, and only then is it known that all are lost."""
    begun: list[float] = []

    async def main(runtime: VirtualRuntime) -> list[str]:
        async def loses(actor: Acts) -> None:
            raise trainer(0)

        class Evaluates(GoesOn):
            async def run(self) -> None:
                begun.append(runtime.clock.now())
                if len(begun) == 1:
                    await runtime.clock.sleep(1.0)
                    raise RefLost(Ref("rollout/0", 1, ("tokens",)))
                await super().run()

        ground = Ground()
        return await mended(runtime, Acts(loses), ground, meanwhile=ground.lost.set, evaluator=Evaluates())

    assert run_virtually(main) == ["back after trainer/0", "filled again", "columns_lost"]
    assert begun == [0.0, 5.0]


def test_a_trainer_that_is_lost_as_the_actor_ends_is_gone_back_from_before_columns_are_filled() -> None:
    async def main(runtime: VirtualRuntime) -> list[str]:
        ground = Ground()

        async def loses_as_it_stops(actor: Acts) -> None:
            ground.lost.set()
            await actor.stopped.wait()
            raise trainer(1)

        return await mended(runtime, Acts(loses_as_it_stops), ground)

    assert run_virtually(main) == ["back after trainer/1", "filled again", "columns_lost"]


def test_a_trainer_that_is_lost_as_it_discards_is_gone_back_from_and_columns_are_filled_then() -> None:
    async def main(runtime: VirtualRuntime) -> list[str]:
        ground = Ground()

        async def stops(actor: Acts) -> None:
            ground.lost.set()
            await actor.stopped.wait()

        return await mended(runtime, Acts(stops), ground, (trainer(0), trainer(1)))

    assert run_virtually(main) == [
        "back after trainer/0",
        "back after trainer/1",
        "filled again",
        "columns_lost",
    ]


def test_one_column_that_is_lost_in_a_batchs_steps_ends_the_run() -> None:
    async def main(runtime: VirtualRuntime) -> list[str]:
        ground = Ground()

        async def misses(actor: Acts) -> None:
            ground.lost.set()
            raise RefLost(Ref("trainer/0", 1, ("proximal",)))

        return await mended(runtime, Acts(misses), ground)

    with pytest.raises(ColumnsLost, match="the shelf has ended"):
        run_virtually(main)


def test_a_loss_that_the_run_is_to_stop_for_stops_it() -> None:
    """Neither another worker's, nor a column's where the others are there."""

    async def main(runtime: VirtualRuntime, error: Exception) -> list[str]:
        async def fails(actor: Acts) -> None:
            raise error

        return await mended(runtime, Acts(fails), Ground())

    engine = WorkerLost(0, "it ended", worker="engine/0")
    for error in (engine, RefLost(Ref("trainer/0", 1, ("proximal",)))):
        with pytest.raises(type(error)) as raised:
            run_virtually(lambda runtime, error=error: main(runtime, error))
        assert raised.value is error
