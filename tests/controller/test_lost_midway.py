"""A loss while the run goes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.controller.building.step_ends import Refreshes
from headrace.controller.going_back import GoingBack, StoppedGoingBack
from headrace.controller.role_tasks import RoleTasks
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.placing import NoRoom
from headrace.runtime.workers import WorkerLost
from headrace.weights.version import Version


class Reached(Exception):
    """What the test is about has come."""


async def nothing(*given: object) -> None: ...


def test_one_that_is_lost_as_the_commit_is_loaded_is_not_healed_but_loads_it_again() -> None:
    """The others may have the commit's state by then, of which the flow knows nothing: healed, the run would go on from
    the version that it left with weights of the one before."""
    asked, loaded, renewed = list[str](), list[Path | None](), list[str]()

    async def now(*given: object) -> None:
        return None

    async def renew() -> None:
        renewed.append("trainer")

    async def load(path: Path | None) -> None:
        loaded.append(path)
        if len(loaded) == 1:
            raise WorkerLost(1, "it ended", worker="trainer/1")
        raise Reached

    class Healing:
        def forget(self) -> None: ...

        async def after(self, kind: str, told: object) -> bool:
            asked.append(kind)
            return len(asked) > 1  # the second time all are as the commit is

    of: Any = SimpleNamespace

    def says(*given: object) -> None: ...

    commit = of(path=Path("step_2"), number=2, verify=says)
    parts = of(
        checkpointer=of(committed=2, forget=nothing),
        flow=of(batch=5),
        branch=0,
        turns=of(train=nothing),
        recorder=of(event=says),
        actor=of(forget_step=says),
        models=of(renew={"trainer": renew}, critic=None),
        refreshes=of(have_begun=False),
    )
    plan = of(replay=None, config=of(runtime=of(restarts=of(most=9, window_s=600.0))))
    store = of(checkpoints=of(newest=lambda: commit), files=None)
    runtime = of(clock=of(now=lambda: 0.0, sleep=nothing), compute=now)

    async def main() -> None:
        back = GoingBack(plan, parts, store, runtime, load)
        back._healing = Healing()  # type: ignore[assignment]
        going: Awaitable[None] = back.after(WorkerLost(0, "it ended", worker="trainer/0"))
        with pytest.raises(Reached):
            await going

    asyncio.run(main())
    assert asked == ["trainer"]
    assert (loaded, renewed) == ([Path("step_2")] * 2, ["trainer"] * 2)


@pytest.mark.parametrize("has_replica", [True, False])
def test_a_trainer_without_room_is_waited_for_once(has_replica: bool) -> None:
    """Where no node had any within the deadline, the run stops with what is short."""
    of: Any = SimpleNamespace
    waited = list[str]()

    async def makes_anew() -> None:
        waited.append("trainer/1")
        raise WorkerLost(1, "trainer/1 has waited 300 s for room", worker="trainer/1") from NoRoom("no node")

    class Healing:
        def forget(self) -> None: ...

        async def after(self, kind: str, told: object) -> bool:
            if has_replica:
                await makes_anew()
            return False

    def says(*given: object) -> None: ...

    parts = of(
        checkpointer=of(committed=2, forget=nothing),
        flow=of(batch=5),
        branch=0,
        turns=of(train=nothing),
        recorder=of(event=says),
        actor=of(forget_step=says),
        models=of(renew={"trainer": makes_anew}, critic=None),
        refreshes=of(have_begun=False),
    )
    plan = of(replay=None, config=of(runtime=of(restarts=of(most=3, window_s=600.0))))
    store = of(checkpoints=of(newest=lambda: of(path=Path("step_2"), number=2)))

    async def main() -> None:
        back = GoingBack(plan, parts, store, of(clock=of(now=lambda: 0.0, sleep=nothing)), nothing)
        back._healing = Healing()  # type: ignore[assignment]
        with pytest.raises(WorkerLost, match=r"trainer/1 is lost: trainer/1 has waited 300 s for room$"):
            await back.after(WorkerLost(1, "its node is lost", worker="trainer/1"))

    asyncio.run(main())
    assert waited == ["trainer/1"]


@pytest.mark.parametrize("heals", [True, False])
def test_a_run_that_is_told_to_stop_is_healed_and_does_not_go_back(heals: bool) -> None:
    """A replica has all that was trained, and a commit has less."""
    of: Any = SimpleNamespace

    class Healing:
        async def after(self, kind: str, told: object) -> bool:
            return heals

    commit = of(path=Path("step_2"), number=2)
    parts = of(
        checkpointer=of(committed=2, forget=nothing),
        flow=of(batch=5),
        branch=0,
        models=of(renew={"trainer": nothing}, critic=None),
        refreshes=of(have_begun=False),
    )
    plan = of(replay=None, config=of(runtime=of(restarts=of(most=9, window_s=600.0))))
    store, runtime = of(checkpoints=of(newest=lambda: commit)), of(clock=of(now=lambda: 0.0))

    async def main() -> None:
        back = GoingBack(plan, parts, store, runtime, nothing)
        back._healing = Healing()  # type: ignore[assignment]
        with nullcontext() if heals else pytest.raises(StoppedGoingBack):
            await back.after(WorkerLost(0, "it ended", worker="trainer/0"), lambda: True)
        assert not back.is_midway

    asyncio.run(main())


@pytest.mark.parametrize("is_midway", [True, False])
def test_a_stop_request_is_acted_on_where_models_may_have_the_commits_state(is_midway: bool) -> None:
    of: Any = SimpleNamespace
    runtime = InlineRuntime()

    async def main() -> None:
        told, healed = asyncio.Event(), asyncio.Event()

        async def after(is_stopping: Callable[[], bool]) -> None:
            told.set()
            await healed.wait()
            assert is_stopping()

        tasks = RoleTasks(of(), of(), runtime, of(is_midway=is_midway))
        stopping = asyncio.ensure_future(told.wait())
        going = asyncio.ensure_future(tasks._go_back(after(stopping.done), [], stopping))
        await asyncio.sleep(0.05)
        assert (stopping.done(), going.done()) == (True, is_midway)
        healed.set()
        with pytest.raises(StoppedGoingBack) if is_midway else nullcontext():
            assert await going == []
        await runtime.close()

    asyncio.run(main())


def test_a_return_that_another_loss_interrupts_is_recorded_and_scorers_know_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lost as the first version of the branch leaves, and healed then."""
    of: Any = SimpleNamespace
    done, asked = list[str](), list[str]()

    class Healing:
        def forget(self) -> None: ...

        async def after(self, kind: str, told: object) -> bool:
            asked.append(kind)
            return len(asked) > 1

    async def leaves() -> None:
        done.append("leaves")
        raise WorkerLost(1, "it ended", worker="trainer/1")

    async def told(self: GoingBack, restored: Any) -> None:
        done.append("told")

    def says(*given: object) -> None: ...

    commit = of(path=Path("step_2"), number=2, verify=says)
    parts = of(
        checkpointer=of(committed=2, forget=nothing),
        context=of(refs=None),
        flow=of(batch=5, go_back=lambda commit, trained: of(branch=1, number=2), left=dict),
        branch=0,
        turns=of(train=nothing, generate=nothing),
        recorder=of(event=lambda kind, told: done.append(kind)),
        actor=of(forget_step=says, begin_again=leaves),
        critic=None,
        scorers=[of(begin_again=lambda: done.append("a scorer knows"))],
        models=of(renew={"trainer": nothing}, critic=None),
        refreshes=of(have_begun=False),
    )
    plan = of(replay=None, config=of(runtime=of(restarts=of(most=9, window_s=600.0))))
    store = of(checkpoints=of(newest=lambda: commit), files=None, ledger=of(trained_since=says), journal=of(read=says))

    async def computed(lane: str, work: Any, *args: object) -> Any:
        return ({}, {}) if work is not commit.verify else None

    monkeypatch.setattr(GoingBack, "_tell", told)
    runtime = of(clock=of(now=lambda: 0.0, sleep=nothing), compute=computed)

    async def main() -> None:
        back = GoingBack(plan, parts, store, runtime, nothing)
        back._healing = Healing()  # type: ignore[assignment]
        await back.after(WorkerLost(0, "it ended", worker="trainer/0"))

    asyncio.run(main())
    assert asked == ["trainer", "trainer"]
    assert done == ["trainer_lost", "told", "a scorer knows", "went_back", "leaves"]


def test_no_return_to_version_0_once_a_newer_one_may_be_the_reference() -> None:
    """Lost as the reference takes it: the batch that made it is not taken note of yet."""
    of: Any = SimpleNamespace

    async def lost() -> None:
        raise WorkerLost(0, "it ended", worker="trainer/0")

    async def shown(version: Version) -> str:
        return str(version)

    models = of(
        renew={"trainer": nothing},
        critic=None,
        refreshed=True,
        reference=of(take=nothing),
        trainer=of(show_aside=shown, end_aside=lost),
    )
    restarts = of(restarts=of(most=9, window_s=600.0))
    plan = of(replay=None, config=of(reference=of(refresh_every=2), runtime=restarts))
    refreshes = Refreshes(plan, models, of(branch=0))
    parts = of(checkpointer=of(committed=0), flow=of(batch=1), models=models, refreshes=refreshes)
    back = GoingBack(plan, parts, of(), of(), nothing)

    async def main() -> None:
        await refreshes.at(1)
        assert back._may_go_back(WorkerLost(0, "it ended", worker="trainer/0"), of(path=None))
        with pytest.raises(WorkerLost) as raised:
            await refreshes.at(2)
        assert not back._may_go_back(raised.value, of(path=None))
        assert back._may_go_back(raised.value, of(path=Path("step_2")))

    asyncio.run(main())
