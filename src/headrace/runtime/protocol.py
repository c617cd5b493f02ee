"""What a run needs from the place that it runs in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headrace.errors import HeadraceError
from headrace.runtime.progress import Standing
from headrace.runtime.refs import Ref, Refs

if TYPE_CHECKING:
    from headrace.runtime.workers import Placement, Worker, Workers

T = TypeVar("T")
W = TypeVar("W", bound="Worker")


class WaitTimeout(HeadraceError, TimeoutError):
    """A wait reached its deadline. The message says what was waited for, and how long."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"waited {seconds:.1f} s for {what}; giving up")
        self.what = what
        self.seconds = seconds

    @property
    def so_far(self) -> str:
        """In words, where whoever waited goes on to wait."""
        return f"has waited {self.seconds:.1f} s for {self.what}"


class Clock(Protocol):
    def now(self) -> float:
        """Monotonic seconds; only differences mean anything, and only within this process."""

    def wall(self) -> float:
        """Seconds since the epoch, for records that people read."""

    async def sleep(self, seconds: float) -> None: ...

    async def wait_for(self, awaitable: Awaitable[T], seconds: float, what: str) -> T:
        """The result of `awaitable`, or WaitTimeout (after cancelling it) once `seconds` have passed."""


class Services(Protocol):
    """Of one event loop: everything that is not pure."""

    @property
    def clock(self) -> Clock: ...

    async def compute(self, lane: str, function: Callable[..., T], *args: Any) -> T:
        """Run blocking work on the named lane. Calls on one lane run one after another, in call order.

        A cancelled caller stops waiting; work already begun runs to its end before the lane goes on.
        """

    def standing(self, lane: str) -> Standing | None:
        """How far the call is that is on the lane; None where there is none, or nothing is known of it."""

    def rebalance(self) -> None:
        """To be called from within long work on a lane, as often as there is an occasion: what lanes share, as
        processors, is shared out anew."""

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """A task that is kept, and ended at the end. Whoever spawns it awaits it."""

    @property
    def refs(self) -> Refs:
        """Where columns are kept, for blocking calls on a lane; the event loop awaits `get`."""

    def put(self, columns: Mapping[str, Any]) -> Ref:
        """Keep columns until `free`. They are not to be changed any more."""

    async def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """Columns by name; all of them unless `names` are given. Not to be changed. Raises RefLost; KeyError for a name
        that the ref does not have."""

    def free(self, ref: Ref) -> None:
        """Nobody will ask for it any more. Of one that is gone, nothing happens."""


class Runtime(Services, Protocol):
    """Roles get everything that is not pure through this."""

    async def start(self, kind: type[W], specs: Sequence[object], where: Placement) -> Workers[W]:
        """Make one worker of each spec. Raises what making them raises, once none of them is left."""

    def devices(self, worker: str) -> Sequence[str]:
        """Of a worker, as engine/0, the devices that a cluster has given it, as `slot 0 of NODE`; none where none
        has."""

    async def close(self) -> None:
        """Cancel what still runs, end all workers, and join every lane; with a deadline, since a user's function may
        never return."""
