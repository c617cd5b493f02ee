"""What the controller makes of what relays answer. The relays are scripted; real ones are in test_relays.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.controller.building.weight_relays import _HiresWithRelay
from headrace.roles.workers.relay import RelaySpec
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.signal import Signal
from headrace.runtime.workers import Handle, WorkerLost
from headrace.weights.plane import Manifest, WeightOffer
from headrace.weights.relay.journey import Found, Sent
from headrace.weights.relay.relays import SOURCE, Relays
from headrace.weights.version import Version

OFFER = WeightOffer(Version(0, 1), "shm", "/first", Manifest(Version(0, 1), ()))
NEWER = WeightOffer(Version(0, 2), "shm", "/first", Manifest(Version(0, 2), ()))


class Scripted:
    """Workers that answer what they are told to."""

    def __init__(self) -> None:
        self.lost: dict[int, str] = {}
        self.changed = Signal()
        self.handles = [Handle(f"relay/{rank}", rank, "") for rank in range(3)]
        self.asked: list[tuple[str, int]] = []
        self.left: list[int] = []
        self.found = Found(OFFER, None)
        self.on: dict[tuple[str, int], Callable[[], Any]] = {}

    async def call(self, method: str, *args: Any, rank: int, what: str, seconds: float | None = None) -> list[Any]:
        self.asked.append((method, rank))
        if (scripted := self.on.get((method, rank))) is not None:
            return [await scripted()]
        usual = {"look": self.found, "plane": ("shm", f"/{rank}"), "listen": 1, "take": True, "send": Sent(8, 8, False)}
        return [usual.get(method)]

    async def restart(self, rank: int) -> None:
        del self.lost[rank]

    async def add(self, spec: object) -> int:
        return 2

    async def leave(self, rank: int) -> None:
        self.left.append(rank)

    async def kill(self, rank: int, reason: str) -> None:
        raise AssertionError(f"nobody is silent: {rank}, {reason}")


async def made(workers: Scripted) -> tuple[Relays, list[tuple[str, dict[str, Any]]]]:
    """With one receiver; pauses are over as soon as `forward` is called."""
    relays = Relays(workers, InlineRuntime().clock, 60.0, deltas=False)  # type: ignore[arg-type]
    events: list[tuple[str, dict[str, Any]]] = []
    relays.tell_to(lambda kind, data: events.append((kind, data)))
    await relays.take_in(SOURCE, [])
    await relays.take_in(1, ["engine/0"])
    return relays, events


def forward(relays: Relays) -> None:
    for place in relays._places.values():
        place.due = 0.0


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


def test_a_relay_that_cannot_be_taken_in_is_let_go() -> None:
    async def run() -> None:
        workers = Scripted()
        relays, _ = await made(workers)

        class Hires:
            async def hire(self) -> tuple[str, Handle]:
                return "an engine", Handle("engine/1", 1, "")

        async def lost() -> str:
            raise WorkerLost(2, "killed", worker="relay/2")

        workers.on["address_towards", 2] = lost
        hires = _HiresWithRelay(None, Hires(), relays, workers, RelaySpec("/memory"), "127.0.0.1")  # type: ignore[arg-type]
        assert (await hires.hire())[0] == "an engine"
        assert workers.left == [2]
        assert relays.rank_of("engine/1") is None

    asyncio.run(run())
