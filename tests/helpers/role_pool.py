"""A pool of engines as roles see it, of which a test says what becomes of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

from headrace.engines.admission import AnyLineage
from headrace.engines.place import Place
from headrace.engines.pool_state import UP, EngineState, EngineView
from headrace.observe.events import Events
from headrace.observe.spent import Activity
from headrace.observe.waits import WaitMeter
from headrace.roles.context import RoleContext
from headrace.runtime.signal import Signal
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.weights.plane import WeightOffer
from headrace.weights.version import Version

STALL_S = 1_000.0
RAISED = " (role_pool.py)"
"""Where a pool raises what is no HeadraceError, as `without_lines` has it."""


class Member:
    """One engine, and what is known of it."""

    def __init__(self, index: int = 0, version: int = 0) -> None:
        self.index = index
        self.name = f"engine {index}"
        self.version = Version(0, version)
        self.state = EngineState.SERVING
        self.failed_swaps = 0
        self.misses_version = False
        self.deaths = 0
        self.failure: Exception | None = None
        self.lost_at, self.dismissed = 0.0, False
        self.away = False
        self.revive: Any = object()
        self.load = 0
        self.engine = SimpleNamespace(
            stats=lambda: SimpleNamespace(running=self.load, waiting=0), rests=False, asleep=()
        )

    @property
    def lives(self) -> bool:
        return self.view.serves

    @property
    def is_up(self) -> bool:
        return self.state in UP

    @property
    def view(self) -> EngineView:
        return EngineView(self.index, self.state, self.version)


def without_lines(message: str) -> str:
    return re.sub(r", line \d+\)$", ")", message)


class Pinned:
    def __init__(self, version: Version) -> None:
        self.version = version
        self.place = Place(version, only=(0,))
        self.is_lost = False
        self.released = 0

    def release(self) -> None:
        self.released += 1


class Pool:
    """Of `members`; `told` has what was asked of it, in order."""

    judge: str | None = None
    name = "the engine"

    def __init__(self, *members: Member) -> None:
        self.members = members or (Member(),)
        self.changed = Signal()
        self.line: Any = AnyLineage()
        self.told: list[Any] = []
        self.failure: Exception | None = None
        self.down_s: float | None = None
        self.return_deadline_s = 100.0
        self.sleep = SimpleNamespace(is_on=False)
        self.events = Events()
        self.open = True
        self.busy = 0
        self.loads: list[int] = []
        """How many groups it had, each time that it was asked for a place."""
        self.pins: list[Pinned] = []
        self.updates: list[Any] = []
        """What the next updates give: a report, or an error that they raise."""
        self.returns: list[Exception | None] = []

    @property
    def version(self) -> Version:
        return max(member.version for member in self.members)

    @property
    def serves_line(self) -> bool:
        return any(view.serves and view.version and self.line.holds(view.version) for view in self.views())

    def look(self) -> None:
        pass

    def views(self) -> list[EngineView]:
        return [member.view for member in self.members]

    def admit(self, is_open: Callable[[int], bool], tokens: int = 0) -> Place | None:
        self.loads.append(self.busy)
        return Place(self.version, home=0) if self.open and is_open(self.version.number) else None

    @contextmanager
    def taken(self, place: Place) -> Iterator[None]:
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    def pin(self, count: int) -> Pinned:
        self.pins.append(Pinned(self.version))
        return self.pins[-1]

    async def update(self, member: Member, receiver: Any, mode: Any) -> Any:
        self.told.append(("update", member.index))
        receiver.offer()
        found = (
            self.updates.pop(0)
            if self.updates
            else SimpleNamespace(
                version=receiver.latest(), flip_s=0.1, prefill_s=0.0, recomputed_tokens=0, interrupted=0
            )
        )
        if isinstance(found, Exception):
            raise found
        if found is not None:
            member.version = found.version
            member.misses_version = False
        return found

    def named(self, member: Member) -> dict[str, Any]:
        return {"engine": member.index, **({} if self.judge is None else {"judge": self.judge})}

    def said_of(self, member: Member, words: str) -> str:
        return f"{member.name}: {words}" if len(self.members) > 1 or self.judge else words

    def lose(self, member: Member, error: Exception) -> None:
        self.told.append(("lose", member.index, str(error)))
        member.state = EngineState.EJECTED

    async def come_back(self, member: Member, receiver: Any) -> None:
        self.told.append(("come back", member.index))
        if self.returns and (error := self.returns.pop(0)) is not None:
            raise error
        member.state = EngineState.SERVING


class Line:
    """Of which versions beyond `last` are left."""

    def __init__(self, last: int) -> None:
        self.last = last

    def holds(self, version: Version) -> bool:
        return version.number <= self.last


class Receiver:
    def __init__(self, number: int | None = None) -> None:
        self.number = number

    def latest(self) -> Version | None:
        return None if self.number is None else Version(0, self.number)

    def offer(self) -> WeightOffer | None:
        version = self.latest()
        return None if version is None else WeightOffer(version, "shm", "/weights")


class Scene:
    """A context on virtual time, with the events that were reported."""

    def __init__(self, runtime: VirtualRuntime, flow: Any) -> None:
        self.runtime, self.flow = runtime, flow
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.activity = Activity()
        self.context = RoleContext(
            runtime,
            flow,
            cast(Any, None),
            WaitMeter(runtime.clock.now),
            lambda kind, data: self.events.append((kind, data)),
            STALL_S,
            activity=self.activity,
        )

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]

    async def settle(self, seconds: float = 1.0) -> None:
        await self.runtime.clock.sleep(seconds)


def play(
    flow: Callable[[], Any], make: Callable[[Scene], Any], body: Callable[[Scene, asyncio.Task[Any]], Awaitable[None]]
) -> None:
    """Run the role that `make` gives while `body` looks on. What the role raised is raised if `body` awaits it."""

    async def main(runtime: VirtualRuntime) -> None:
        scene = Scene(runtime, flow())
        running = runtime.spawn(make(scene).run(), "the role")
        try:
            await body(scene, running)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run_virtually(main)
