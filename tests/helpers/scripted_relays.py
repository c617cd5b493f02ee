"""Relays whose workers answer what a test tells them to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.runtime.inline import InlineRuntime
from headrace.runtime.signal import Signal
from headrace.runtime.workers import Handle
from headrace.weights.plane import Manifest, WeightOffer
from headrace.weights.relay.journey import SOURCE, Found, Journey, Plane, Sent
from headrace.weights.relay.relays import Relays
from headrace.weights.version import Version

OFFER = WeightOffer(Version(0, 1), "shm", "/first", Manifest(Version(0, 1), ()))
NEWER = WeightOffer(Version(0, 2), "shm", "/first", Manifest(Version(0, 2), ()))


class Scripted:
    """Workers that answer what they are told to."""

    def __init__(self) -> None:
        self.lost: dict[int, str] = {}
        self.changed = Signal()
        self.handles = [Handle(f"relay/{rank}", rank, "") for rank in range(5)]
        self.asked: list[tuple[str, int]] = []
        self.given: dict[tuple[str, int], tuple[Any, ...]] = {}
        """With which a rank was last asked a method."""
        self.journeys: list[tuple[str, Journey]] = []
        self.left: list[int] = []
        self.made = 1
        self.found = Found(OFFER, None)
        self.on: dict[tuple[str, int], Callable[[], Any]] = {}

    async def call(self, method: str, *args: Any, rank: int, what: str, seconds: float | None = None) -> list[Any]:
        self.asked.append((method, rank))
        self.given[method, rank] = args
        self.journeys += [(method, each) for each in args if isinstance(each, Journey)]
        if (scripted := self.on.get((method, rank))) is not None:
            return [await scripted()]
        usual = {
            "look": self.found,
            "plane": Plane("shm", f"/{rank}", "127.0.0.1"),
            "listen": 1,
            "take": True,
            "send": Sent(8, 8, False),
        }
        return [usual.get(method)]

    async def restart(self, rank: int) -> None:
        del self.lost[rank]

    async def add(self, spec: object) -> int:
        self.made += 1
        return self.made

    async def leave(self, rank: int) -> None:
        self.left.append(rank)

    async def kill(self, rank: int, reason: str) -> None:
        raise AssertionError(f"nobody is silent: {rank}, {reason}")


async def made(
    workers: Scripted, device_of: Callable[[int], str] | None = None
) -> tuple[Relays, list[tuple[str, dict[str, Any]]]]:
    """With one receiver; pauses are over as soon as `forward` is called."""
    relays = Relays(workers, InlineRuntime().clock, 60.0, deltas=False, device_of=device_of)  # type: ignore[arg-type]
    events: list[tuple[str, dict[str, Any]]] = []
    relays.events.tell_to(lambda kind, data: events.append((kind, data)))
    await relays.take_in(SOURCE)
    await relays.take_in(1, ["engine/0"])
    return relays, events


def forward(relays: Relays) -> None:
    for place in relays._places.values():
        place.due = 0.0
