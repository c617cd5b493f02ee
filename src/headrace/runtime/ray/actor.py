"""One worker in an actor's process: the answering side.

Ray makes it from a class of this module by name, so that nothing of a class crosses. What is asked and answered are
boxes (`boxes.py`); errors are answers, and Ray's own ways for them are not used. The actor's calls share one event
loop, as those of any worker process, and of each asker they begin in its order.
"""

from __future__ import annotations

import asyncio
import platform
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from headrace.errors import HeadraceError
from headrace.runtime.clock import SystemClock
from headrace.runtime.collection import rare_collections
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.local.awaited import WINDOW
from headrace.runtime.local.host import WorkerHost
from headrace.runtime.local.local_refs import GENERATION
from headrace.runtime.local.service import Service, as_worker_error
from headrace.runtime.process.identity import name_process
from headrace.runtime.progress import Stuck
from headrace.runtime.ray.actor_process import require_versions, worker_class
from headrace.runtime.ray.asked_actor import ANSWER, ERROR
from headrace.runtime.ray.asker import Asker
from headrace.runtime.ray.askers import Askers
from headrace.runtime.ray.boot import ActorBoot
from headrace.runtime.ray.boxes import Box, boxed, opened
from headrace.runtime.ray.call_order import CallOrder
from headrace.runtime.ray.reached import ReachedActor
from headrace.runtime.ray.refs import ActorRefs
from headrace.runtime.workers import BASE_TYPES, Handle, Peer, WorkerError, WorkerLost

Told = tuple[str, Box]
"""ANSWER or ERROR, and what it is."""
_MISSED_S = 30.0
"""In which a call comes that others of its asker wait for, whatever it brings. One whose machine could not be reached
for a moment never does; Ray repeats none."""


class Actor:
    """Its methods are the controller's and other actors' to call."""

    def __init__(self, boot: str) -> None:
        """`boot`: see `ActorBoot`."""
        self._boot = ActorBoot.parse(boot)
        self._kind = kind = worker_class(self._boot)
        self._types = BASE_TYPES.with_types(kind.types)
        self._service: Service | None = None
        self._calls: dict[str, asyncio.Task[Any]] = {}
        self._order = CallOrder(SystemClock(), _MISSED_S, _say)
        self._stopped: set[str] = set()
        """Calls that are told to stop, and have not come."""
        self._streams: dict[str, _Items] = {}
        self._left = asyncio.Event()
        self._why = "it left"
        self._begun = False
        self._for_good = ExitStack()
        """What holds until the process ends."""

    async def build(self, number: str, box: Box) -> Told:
        """The worker, from its spec."""
        self._begin()

        async def made() -> None:
            boot, runtime = self._boot, self._runtime
            require_versions(boot)
            spec = opened(box, self._types, f"the spec of {boot.name}")
            try:
                self._service = await Service.make(
                    self._kind, spec, self._host, boot.name, boot.rank, runtime, runtime.place
                )
            except HeadraceError as error:
                raised, host = as_worker_error(error, boot.name, boot.rank), platform.node()
                raise WorkerError(boot.rank, raised.type, f"{raised.text} (on {host})", worker=boot.name) from error
            self._for_good.enter_context(rare_collections())

        return await self._told(number, made, f"the spec of {self._boot.name}")

    async def call(self, number: str, method: str, box: Box) -> Told:
        """What the worker's method returns."""

        async def called() -> Any:
            return await self._made().call(method, opened(box, self._types, f"the arguments of {method}"))

        return await self._told(number, called, f"the answer of {self._boot.name}.{method}")

    async def stream(self, number: str, method: str, box: Box) -> Told:
        """Have the method's items fetched by `items`; answers once there are no more."""
        items = self._items_of(number)

        async def streamed() -> None:
            args = opened(box, self._types, f"the arguments of {method}")
            await self._made().stream(method, args, items.put)

        try:
            return await self._told(number, streamed, f"an item of {self._boot.name}.{method}")
        finally:
            items.end()

    async def items(self, number: str) -> list[Box]:
        """Those that came since they were asked for last; none once there are no more."""
        items = self._items_of(number)
        found = await items.taken()
        if not found:
            self._streams.pop(number, None)
        return [boxed(item, self._types, f"an item of {self._boot.name}") for item in found]

    async def stop(self, number: str) -> None:
        """It answers all the same."""
        if (task := self._calls.get(number)) is not None:
            task.cancel()
        elif not self._order.has_come(number):
            self._stopped.add(number)
        if (items := self._streams.pop(number, None)) is not None:
            items.end()

    async def beat(self) -> str:
        """That the event loop turns: the id of the node that it is on."""
        import ray

        node: str = ray.get_runtime_context().get_node_id()
        return node

    async def life(self) -> str:
        """Until it leaves, or has to be ended: why."""
        await self._left.wait()
        return self._why

    async def leave(self) -> None:
        """End, once what was asked before is answered."""
        self._left.set()
        if self._begun:
            await self._runtime.close()
        import ray

        ray.actor.exit_actor()

    def _begin(self) -> None:
        """In its event loop."""
        boot = self._boot
        self._runtime = InlineRuntime(copying=False, limits=boot.limits, on_stuck=self._stuck)
        self._refs = ActorRefs(boot.name, boot.generation * GENERATION, self._types, boot.namespace)
        self._host = WorkerHost(
            boot.name, boot.rank, self._runtime, self._refs, self._refs.get_soon, self._reach, threads=boot.threads
        )
        self._askers = Askers(boot.namespace, self._runtime, self._end_all_of)
        name_process(boot.name)
        self._begun = True

    def _end_all_of(self, asker: Asker, why: str) -> None:
        """Nothing is done any more for a worker that has ended."""
        calls = [number for number in self._calls if Asker.of(number) == asker]
        if calls:
            _say(f"{len(calls)} calls end with {asker.name}, who asked: {why}")
        for number in calls:
            self._calls[number].cancel()
        for number in [number for number in self._streams if Asker.of(number) == asker]:
            self._streams.pop(number).end()
        self._stopped = {number for number in self._stopped if Asker.of(number) != asker}
        self._order.forget(lambda whose: Asker.of(whose) == asker)

    def _stuck(self, stuck: Stuck) -> None:
        """No thread can be made to end; whoever hears of it ends the actor."""
        _say(str(stuck))
        self._why = str(stuck)
        self._left.set()

    def _reach(self, handle: Handle) -> Peer:
        return ReachedActor(handle, self._types, self._runtime, Asker(self._boot.name, self._boot.generation))

    def _made(self) -> Service:
        if self._service is None:
            raise WorkerLost(self._boot.rank, "it is not made yet", worker=self._boot.name)
        return self._service

    def _items_of(self, number: str) -> _Items:
        return self._streams.setdefault(number, _Items())

    async def _told(self, number: str, work: Callable[[], Awaitable[Any]], what: str) -> Told:
        async def in_order() -> Any:
            await self._order.turn(number)
            return await work()

        task = self._calls[number] = asyncio.ensure_future(in_order())
        if number in self._stopped:
            self._stopped.remove(number)
            task.cancel()
        try:
            if self._begun:
                self._askers.heard(number)
            await asyncio.wait([task])
            if task.cancelled():
                raise WorkerError(self._boot.rank, "CancelledError", "it was stopped", worker=self._boot.name)
            return ANSWER, boxed(task.result(), self._types, what)
        except Exception as error:
            raised = error if isinstance(error, WorkerError) else as_worker_error(error, self._boot.name, 0)
            return ERROR, boxed([raised.type, raised.text, raised.trace], self._types, "an error")
        finally:
            self._calls.pop(number, None)
            self._order.ended(number)


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")


_AHEAD = WINDOW // 2
"""Items that wait; whoever reads them may have as many at hand."""


class _Items:
    """Of one stream."""

    def __init__(self) -> None:
        self._waiting: deque[Any] = deque()
        self._changed = asyncio.Condition()
        self._ended = False

    async def put(self, item: Any) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._waiting) < _AHEAD or self._ended)
            self._waiting.append(item)
            self._changed.notify_all()

    def end(self) -> None:
        self._ended = True
        asyncio.ensure_future(self._notify())  # noqa: RUF006 (it waits for nothing but the condition)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def taken(self) -> list[Any]:
        """All that wait, once there is one; none once there will be none."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._waiting) or self._ended)
            items = [*self._waiting]
            self._waiting.clear()
            self._changed.notify_all()
            return items
