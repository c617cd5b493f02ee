"""What the controller makes of what relays answer. The relays are scripted; real ones are in test_relays.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from scripted_relays import NEWER, OFFER, Scripted, forward, made

from headrace.controller.building.relay_users import RelaySupply, RelayUsers
from headrace.controller.building.weight_relays import supplying_scorer
from headrace.observe.waits import WaitMeter
from headrace.roles.context import RoleContext
from headrace.roles.model_return import ModelReturn
from headrace.roles.weight_relays import WeightRelaysRole
from headrace.roles.workers.relay import RelaySpec
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.supervision import pause_after
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import Handle, WorkerError, WorkerLost
from headrace.weights.relay.journey import SOURCE, Found, Plane
from headrace.weights.relay.receiver import OverRelays
from headrace.weights.relay.relays import Relays
from headrace.weights.seen import Seen
from headrace.weights.version import Version


def test_a_trainer_without_a_version_is_waited_for_with_a_pause() -> None:
    async def run() -> None:
        workers = Scripted()
        relays, events = await made(workers)
        await relays.carry("/first")
        assert relays.version_at(1) == Version(0, 1)
        workers.lost = {1: "killed"}
        await relays.mend()  # it sees that
        workers.found = Found(None, None)  # the trainer is made anew meanwhile, and its folder is gone
        forward(relays)
        events.clear()
        workers.asked.clear()
        for _ in range(3):  # whoever mends while something is due
            if (due := relays.next_due()) is not None and due <= 0:
                await relays.mend()
        assert [method for method, _ in workers.asked] == ["plane", "look"]
        ((kind, told),) = events
        assert (kind, told["relay"]) == ("relay_left_out", SOURCE)
        assert "/first holds no version any more" in told["message"]
        due = relays.next_due()
        assert due is not None
        assert due > 0
        workers.found = Found(OFFER, None)  # a new life has another folder, and waits for no pause
        await relays.carry("/second")
        assert relays.next_due() == 0
        await relays.mend()
        assert relays.offer_at(1).version == Version(0, 1)
        assert relays.next_due() is None

    asyncio.run(run())


def test_a_chain_goes_from_machine_to_machine_and_not_back_and_forth() -> None:
    """The source and the relays 2 and 4 are on one, 1 and 3 on the other."""

    async def run() -> None:
        workers = Scripted()
        for rank in range(5):
            address = f"10.0.0.{1 + rank % 2}"
            workers.on["plane", rank] = partial(_soon, Plane("shm", f"/{rank}", address))
        relays, events = await made(workers)
        for rank in (2, 3, 4):
            await relays.take_in(rank, [f"engine/{rank}"])
        await relays.carry("/first")
        ((kind, told),) = events
        assert (kind, told["relays"]) == ("weights_carried", [2, 4, 1, 3])
        (journey,) = {journey for method, journey in workers.journeys}
        assert journey.order == (0, 2, 4, 1, 3), "places in their group, which has them by rank"

    asyncio.run(run())


async def _soon(answer: Any) -> Any:
    return answer


@pytest.mark.parametrize("took_it", [False, True])
def test_what_a_journey_says_of_a_relay_made_anew_meanwhile_is_of_the_one_before(
    took_it: bool,
) -> None:
    async def run() -> None:
        workers = Scripted()
        relays, events = await made(workers)
        await relays.carry("/first")
        on_its_way, over = asyncio.Event(), asyncio.Event()

        async def take() -> bool:
            on_its_way.set()
            await over.wait()
            if not took_it:
                raise WorkerLost(1, "killed", worker="relay/1")
            return True

        workers.on["take", 1] = take
        workers.found = Found(NEWER, None)
        carrying = asyncio.create_task(relays.carry("/first"))
        await on_its_way.wait()
        workers.lost = {1: "killed"}
        mending = asyncio.create_task(relays.mend())
        await asyncio.sleep(0)
        forward(relays)
        mending.cancel()
        mending = asyncio.create_task(relays.mend())  # makes it anew
        for _ in range(9):
            await asyncio.sleep(0)
        assert not workers.lost
        workers.on.clear()
        events.clear()
        over.set()
        await carrying
        await mending
        assert [each for each in events if each[0] == "relay_left_out"] == []
        place = relays._places[1]
        if place.offer is None:  # its pause is not over: the loss was told before
            forward(relays)
            await relays.mend()
        assert relays.offer_at(1).version == Version(0, 2)
        assert workers.asked.count(("take", 1)) == 3, "the new life is sent it again"

    asyncio.run(run())


def test_what_is_not_nccls_fault_does_not_have_it_given_up() -> None:
    """A source that dies as a group comes together, a port that it cannot have, and a damaged version."""

    async def run() -> None:
        workers = Scripted()
        for rank in range(2):
            workers.on["plane", rank] = partial(
                _soon, Plane("shm", f"/{rank}", "127.0.0.1", devices=("GPU-0", "GPU-1"))
            )
        relays, events = await made(workers, lambda rank: f"GPU-{rank}")

        async def dies() -> None:
            workers.lost = {SOURCE: "killed"}
            raise WorkerLost(SOURCE, "killed", worker="relay/0")

        async def fails(type: str) -> None:
            raise WorkerError(SOURCE, type, "no", worker="relay")

        faulty: tuple[dict[tuple[str, int], Callable[[], Any]], ...] = (
            {("join", SOURCE): dies, ("join", 1): partial(fails, "NcclError")},
            {("listen", SOURCE): partial(fails, "WeightError")},
            {("send", SOURCE): partial(fails, "WeightError"), ("take", 1): partial(fails, "PeerError")},
        )
        for script in faulty:
            usual, workers.on = workers.on, workers.on | script
            for _ in range(2):
                forward(relays)
                await relays.carry("/first")
            workers.on = usual
        assert {kind for kind, _ in events} == {"relay_left_out"}
        assert {told["relay"] for _, told in events} == {SOURCE}
        forward(relays)
        await relays.carry("/first")
        assert events[-1][1]["transport"] == "collective (nccl)"

    asyncio.run(run())


def test_one_that_lives_and_could_not_take_a_version_is_tried_again_after_its_pause() -> None:
    """Though no worker was lost, and nobody else has taken one."""

    async def main(runtime: VirtualRuntime) -> None:
        workers = Scripted()
        relays = Relays(workers, runtime.clock, 60.0, deltas=False)  # type: ignore[arg-type]
        await relays.take_in(SOURCE)
        await relays.take_in(1, ["engine/0"])
        nothing: Any = None
        context = RoleContext(
            runtime, nothing, nothing, WaitMeter(runtime.clock.now), lambda kind, data: None, stall_timeout_s=1e6
        )
        role = runtime.spawn(WeightRelaysRole(context, relays).run(), "relays")
        await runtime.clock.sleep(1.0)

        async def fails() -> None:
            raise WorkerError(1, "OSError", "no room", worker="relay/1")

        workers.on["take", 1] = fails
        await relays.carry("/first")
        workers.on.clear()
        assert not relays.has_newest("engine/0")
        await runtime.clock.sleep(2 * pause_after(1))
        assert relays.has_newest("engine/0")
        role.cancel()

    run_virtually(main)


def test_one_to_which_changes_did_not_come_is_sent_the_whole() -> None:
    """What it has of the version before may be damaged: the same changes would fail again, each time."""

    async def run() -> None:
        workers = Scripted()
        relays = Relays(workers, InlineRuntime().clock, 60.0, deltas=True)  # type: ignore[arg-type]
        await relays.take_in(SOURCE)
        await relays.take_in(1, ["engine/0"])
        await relays.carry("/first")

        async def fails() -> None:
            raise WorkerError(1, "WeightError", "bytes 64 to 128 were damaged on their way", worker="relay/1")

        workers.found, workers.on["take", 1] = Found(NEWER, OFFER.version), fails
        await relays.carry("/first")
        assert not relays.has_newest("engine/0")
        workers.on.clear()
        forward(relays)
        await relays.mend()
        assert relays.has_newest("engine/0")
        bases = [journey.base for method, journey in workers.journeys if method == "take"]
        assert bases == [None, OFFER.version, None]

    asyncio.run(run())


HERE, AWAY = Seen("boot 1", "tmpfs 1", 10, "cpu", loopback="1"), Seen("boot 2", "tmpfs 1", 10, "cpu", loopback="2")


class Trainer:
    seen = HERE

    first = "trainer/0"

    async def sees(self) -> tuple[str, Seen]:
        return self.first, self.seen


async def supplied(
    ends: dict[str, Seen], is_lost: Callable[[str], bool] = lambda worker: False
) -> tuple[RelayUsers, RelaySupply, Relays, Scripted, Trainer]:
    """With a version, and one relay for each that needs it."""
    workers, trainer = Scripted(), Trainer()
    users = RelayUsers("trainer/0", HERE, ends, each=False)
    relays = Relays(workers, InlineRuntime().clock, 60.0, deltas=False)  # type: ignore[arg-type]
    supply = RelaySupply(users, relays, workers, RelaySpec("/memory"), InlineRuntime().clock, trainer.sees, is_lost)  # type: ignore[arg-type]
    await relays.take_in(SOURCE)
    for rank, user in users.by_rank.items():
        await relays.take_in(rank, [user])
    await relays.carry("/first")
    return users, supply, relays, workers, trainer


def test_who_sees_the_trainers_memory_has_no_relay_wherever_both_come_to_be() -> None:
    async def run() -> None:
        users, supply, relays, workers, trainer = await supplied({"engine/0": HERE, "engine/1": AWAY})
        assert [users.beside(rank) for rank in (0, 1)] == ["trainer/0", "engine/1"]
        near, far = (OverRelays(None, relays).near(f"engine/{number}") for number in (0, 1))  # type: ignore[arg-type]
        assert (near.offer(), far.offer()) == (OFFER, replace(OFFER, address="/1"))
        await supply.supply("engine/1", HERE)  # its node was lost
        assert workers.left == [1]
        assert far.offer() == OFFER
        trainer.seen, trainer.first = AWAY, "trainer/1"
        await supply.look_again()
        assert users.beside(0) == "trainer/1"
        assert [(users.beside(rank), relays.rank_of(users.beside(rank))) for rank in (2, 3)] == [
            ("engine/0", 2),
            ("engine/1", 3),
        ]
        assert near.offer() == replace(OFFER, address="/2")

    asyncio.run(run())


def test_a_scorer_that_comes_back_on_another_machine_takes_versions_from_a_relay_there() -> None:
    class Proximal:
        workers = ("proximal/0",)
        seen = HERE

        async def sees(self) -> list[Seen]:
            return [self.seen]

    async def run() -> None:
        _, supply, relays, _, _ = await supplied({"proximal/0": HERE})
        near = OverRelays(None, relays).near("proximal/0")  # type: ignore[arg-type]
        workers, proximal = Scripted(), Proximal()

        async def restart() -> None:
            workers.lost.clear()
            proximal.seen = AWAY

        workers.handles, workers.lost = [Handle("proximal/0", 0, "")], {0: "its node is lost"}
        returns = ModelReturn(workers, InlineRuntime().clock, restart)  # type: ignore[arg-type]
        returns.once_back = supplying_scorer(supply, proximal)  # type: ignore[arg-type]
        assert relays.rank_of("proximal/0") is None
        await returns.after(WorkerLost(0, "its node is lost", worker="proximal/0"))
        assert relays.rank_of("proximal/0") == 2
        assert near.offer() == replace(OFFER, address="/2")

    asyncio.run(run())


def test_a_trainer_that_comes_back_elsewhere_has_no_relay_made_beside_one_that_is_lost() -> None:
    async def run() -> None:
        _, supply, relays, workers, trainer = await supplied(
            {"engine/0": HERE, "proximal/0": HERE}, lambda worker: worker == "proximal/0"
        )
        trainer.seen = AWAY
        await supply.look_again()
        assert (relays.rank_of("engine/0"), relays.rank_of("proximal/0"), workers.made) == (2, None, 2)
        await supply.supply("proximal/0", AWAY)
        assert (relays.rank_of("proximal/0"), workers.made) == (None, 2), "it sees the trainer's memory again"

    asyncio.run(run())


def test_an_engine_that_comes_and_leaves_has_its_relay_come_and_leave() -> None:
    async def run() -> None:
        _, supply, relays, workers, _ = await supplied({"engine/0": AWAY})
        await supply.supply("engine/1", AWAY)
        assert relays.offer_at(2).version == OFFER.version
        await supply.let_go("engine/1")
        assert workers.left == [2]
        assert relays.rank_of("engine/1") is None

    asyncio.run(run())


def test_an_engine_that_leaves_while_its_relay_is_made_leaves_none_behind() -> None:
    async def run() -> None:
        _, supply, relays, workers, _ = await supplied({"engine/0": AWAY})
        is_asked, may_answer = asyncio.Event(), asyncio.Event()

        async def plane() -> Plane:
            is_asked.set()
            await may_answer.wait()
            return Plane("shm", "/2", "127.0.0.1")

        workers.on["plane", 2] = plane
        supplying = asyncio.ensure_future(supply.supply("engine/1", AWAY))
        await is_asked.wait()
        supplying.cancel()
        asyncio.get_running_loop().call_later(0.05, may_answer.set)
        await asyncio.gather(supplying, return_exceptions=True)
        await supply.let_go("engine/1")
        assert workers.left == [2]
        assert relays.rank_of("engine/1") is None

    asyncio.run(run())


def test_the_device_of_a_relay_is_that_of_whoever_it_is_beside_now() -> None:
    async def run() -> None:
        users, supply, _, _, trainer = await supplied({"engine/0": HERE, "engine/1": replace(AWAY, device="GPU-2")})
        assert [users.device_of(rank) for rank in (SOURCE, 1)] == ["cpu", "GPU-2"]
        await supply.supply("engine/1", replace(AWAY, device="GPU-3"))
        trainer.seen = replace(HERE, device="GPU-1")
        await supply.look_again()
        assert [users.device_of(rank) for rank in (SOURCE, 1)] == ["GPU-1", "GPU-3"]
        await supply.let_go("engine/1")
        assert users.device_of(1) == "cpu"

    asyncio.run(run())


def test_a_relay_that_cannot_be_taken_in_is_let_go() -> None:
    async def run() -> None:
        _, supply, relays, workers, _ = await supplied({"engine/0": AWAY})

        async def lost() -> str:
            raise WorkerLost(2, "killed", worker="relay/2")

        workers.on["plane", 2] = lost
        await supply.supply("engine/1", AWAY)
        assert workers.left == [2]
        assert relays.rank_of("engine/1") is None

    asyncio.run(run())


def test_a_relay_that_is_not_where_the_trainer_came_back_is_made_anew_beside_it() -> None:
    async def run() -> None:
        _, _, relays, workers, _ = await supplied({"engine/0": AWAY})
        workers.found = Found(None, None)
        killed = []

        async def kill(rank: int, reason: str) -> None:
            killed.append((rank, reason))
            workers.lost = {rank: reason}

        workers.kill = kill  # type: ignore[method-assign]
        await relays.carry("/second")
        assert killed == [(SOURCE, "it sees nothing at /second, where the trainer is now")]
        workers.found = Found(NEWER, None)
        forward(relays)
        await relays.mend()
        assert relays.offer_at(1).version == NEWER.version

    asyncio.run(run())


def test_relays_meet_where_the_trainer_is() -> None:
    """At an address of its own machine, whose else `weights.host` may be: the trainer may have come back elsewhere."""

    async def run() -> None:
        workers = Scripted()
        addresses = {SOURCE: "10.0.0.7", 1: "10.0.0.9"}

        def plane(rank: int) -> Plane:
            return Plane("shm", f"/{rank}", addresses[rank])

        for rank in addresses:
            workers.on["plane", rank] = lambda rank=rank: _soon(plane(rank))
        relays = Relays(workers, InlineRuntime().clock, 60.0, host="10.0.0.7", deltas=False)  # type: ignore[arg-type]
        await relays.take_in(SOURCE)
        await relays.take_in(1, ["engine/0"])
        await relays.carry("/first")
        workers.lost, workers.found = {SOURCE: "its node is lost"}, Found(NEWER, None)
        addresses[SOURCE] = "10.0.0.8"
        await relays.carry("/second")
        forward(relays)
        await relays.mend()
        assert relays.offer_at(1).version == NEWER.version
        assert workers.given["listen", SOURCE] == ("10.0.0.8",)
        for rank, own in addresses.items():
            meeting, number, host = workers.given["join", rank]
            assert (meeting.host, number, host) == ("10.0.0.8", rank, own)

    asyncio.run(run())
