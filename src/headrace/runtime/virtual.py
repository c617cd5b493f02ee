"""Virtual time: an event loop that passes over every wait, so that a run of hours takes as long as its decisions do.

Time stands still while anything is ready, and then moves to the next timer. What happens, and in which order, follows
from the coroutines alone: two processes that begin alike go on alike, whatever the machine does meanwhile. Nothing real
runs under it: no thread, no subprocess, no socket. What computes is charged for (`VirtualRuntime.charge`).
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeVar

from headrace.runtime.clock import LoopClock
from headrace.runtime.event_loop_services import NO_TYPES, EventLoopServices
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Placement, Worker, Workers

T = TypeVar("T")
W = TypeVar("W", bound=Worker)

MOST_CALLBACKS = 100_000
"""At one instant; more are taken for a circle."""
_EPOCH_S = 1_600_000_000.0
"""What people's clocks show at the beginning."""


class Deadlock(RuntimeError):
    """Everybody waits, and nothing that is to come wakes anybody."""


class Livelock(RuntimeError):
    """The same instant never ends."""


class _Selector(selectors.SelectSelector):
    """Waits for nothing: time moves instead. The one descriptor that a loop has is of signals and other threads."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.callbacks = 0
        """Asked for at this instant."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if self.callbacks > MOST_CALLBACKS:
            self.callbacks = 0  # the loop still has to be closed
            raise Livelock(f"more than {MOST_CALLBACKS} callbacks at {self.now:.6f} s, and time stands still")
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Deadlock(f"at {self.now:.6f} s every task waits, and no timer is set")
        self.now += max(timeout, 0.0)
        self.callbacks = 0
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Raises Deadlock and Livelock from `run_until_complete`, and RuntimeError for what would take real time."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self._virtual.callbacks += 1
        return super().call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> NoReturn:
        raise RuntimeError(f"a thread would take real time: {func!r}; charge for it in virtual time")

    async def create_connection(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError("a connection would take real time")

    async def create_server(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError("a server would take real time")

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError("a process would take real time")


def run_virtually(main: Callable[[VirtualRuntime], Coroutine[Any, Any, T]]) -> T:
    """The result of `main` in virtual time. Raises Deadlock, Livelock, and what `main` raises; whatever it left behind
    is cancelled."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        runtime = VirtualRuntime(VirtualClock(loop))
        return runner.run(main(runtime))


class VirtualClock(LoopClock):
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return _EPOCH_S + self._loop.time()


@dataclass(slots=True)
class _Lane:
    """Calls on a lane run one after another, in the order in which they came."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    busy_s: float = 0.0


class VirtualRuntime(EventLoopServices):
    """A `Runtime` whose lanes compute at once, and are busy for as long as what they did is charged for."""

    def __init__(self, clock: VirtualClock, *, copying: bool | None = None, types: WireTypes = NO_TYPES) -> None:
        """See `InlineRuntime`."""
        super().__init__(clock, copying=copying, types=types)
        self._lanes: dict[str, _Lane] = {}
        self._charged_s = 0.0
        self._virtual = clock

    @property
    def clock(self) -> VirtualClock:
        return self._virtual

    @property
    def busy_s(self) -> Mapping[str, float]:
        """Of each lane, how long it was busy."""
        return {name: lane.busy_s for name, lane in self._lanes.items()}

    @property
    def kept(self) -> int:
        """Refs that were put here and not freed."""
        return self._place.kept

    def lose_columns(self) -> None:
        """All refs are lost, also those of workers: a fault."""
        self._place.lose_columns()

    def charge(self, seconds: float) -> None:
        """From within a call on a lane: it takes so much longer."""
        self._charged_s += seconds

    async def compute(self, lane: str, function: Callable[..., T], *args: Any) -> T:
        """See `Services.compute`. The call's effects are there when its time begins, its result when that is over."""
        self._check_open(lane)
        work = self.spawn(self._call(self._lanes.setdefault(lane, _Lane()), function, *args), f"call on {lane}")
        work.add_done_callback(lambda done: done.cancelled() or done.exception())  # whose caller may be gone
        return await asyncio.shield(work)  # a caller that is cancelled stops waiting; the work goes on

    async def _call(self, lane: _Lane, function: Callable[..., T], *args: Any) -> T:
        async with lane.turn:
            before, self._charged_s = self._charged_s, 0.0
            try:
                return function(*args)
            finally:
                charged, self._charged_s = self._charged_s, before
                lane.busy_s += charged
                await self._clock.sleep(charged)

    def rebalance(self) -> None:
        """Nothing is shared."""

    async def start(self, kind: type[W], specs: Sequence[object], where: Placement) -> Workers[W]:
        """See `Runtime.start`. No process runs under virtual time: its workers are here, too."""
        return await super().start(kind, specs, replace(where, process=False))
