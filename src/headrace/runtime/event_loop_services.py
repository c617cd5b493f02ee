"""What all runtimes of one event loop have in common: tasks, refs and workers in their own process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.runtime.local.place import Place
from headrace.runtime.progress import Standing
from headrace.runtime.protocol import Clock
from headrace.runtime.refs import Ref, Refs
from headrace.runtime.wire.copying import is_copying
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Placement, Worker, Workers

if TYPE_CHECKING:
    from headrace.runtime.apart import Apart

T = TypeVar("T")
W = TypeVar("W", bound=Worker)

logger = logging.getLogger(__name__)

NO_TYPES = WireTypes()
_CLOSING_S = 30.0
"""How long tasks may take to end, once they are told to."""


class EventLoopServices:
    """A `Runtime` but for `compute` and `rebalance`."""

    def __init__(
        self,
        clock: Clock,
        *,
        copying: bool | None = None,
        types: WireTypes = NO_TYPES,
        apart: Apart | None = None,
    ) -> None:
        """`copying`: as the environment has it, unless given. `types` of columns."""
        self._clock = clock
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._spawned = 0
        self._closed = False
        copies = is_copying() if copying is None else copying
        self._place = Place(self, copying=copies, types=types, apart=apart)

    @property
    def clock(self) -> Clock:
        return self._clock

    async def compute(self, lane: str, function: Callable[..., T], *args: Any) -> T:
        """See `Services.compute`."""
        raise NotImplementedError

    def standing(self, lane: str) -> Standing | None:
        """See `Services.standing`."""
        return None

    def rebalance(self) -> None:
        """See `Services.rebalance`."""
        raise NotImplementedError

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """See `Services.spawn`."""
        self._spawned += 1
        number = self._spawned
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks[number] = task
        task.add_done_callback(lambda done: self._tasks.pop(number, None))
        return task

    @property
    def refs(self) -> Refs:
        """See `Services.refs`."""
        return self._place.refs

    def put(self, columns: Mapping[str, Any]) -> Ref:
        """See `Services.put`."""
        return self._place.refs.put(columns)

    async def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Services.get`."""
        return await self._place.get(ref, names)

    def free(self, ref: Ref) -> None:
        """See `Services.free`."""
        self._place.refs.free(ref)

    async def start(self, kind: type[W], specs: Sequence[object], where: Placement) -> Workers[W]:
        """See `Runtime.start`."""
        self._check_open(kind.kind)
        return await self._place.start(kind, specs, where)

    def devices(self, worker: str) -> Sequence[str]:
        """See `Runtime.devices`."""
        return self._place.devices(worker)

    async def close(self) -> None:
        """See `Runtime.close`. Errors of tasks that nobody awaited, and of workers at their end, are not raised."""
        await self._place.close()
        tasks = [task for task in self._tasks.values() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSING_S)
        for task in tasks:
            if not task.done():
                logger.warning("%s did not end when it was told to; it is left behind", task.get_name())
            elif not task.cancelled():
                task.exception()  # it is known, and nobody's
        self._closed = True

    def _check_open(self, lane: str) -> None:
        if self._closed:
            raise RuntimeError(f"the runtime is closed; lane {lane!r} takes no more work")
