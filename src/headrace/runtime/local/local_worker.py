"""A worker in this process: on the lanes and in the event loop of whoever asks it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from headrace.runtime.local.awaited import END_S, WINDOW, Asked, Incoming, answered
from headrace.runtime.local.host import WorkerHost
from headrace.runtime.local.service import Service
from headrace.runtime.protocol import Clock, Services
from headrace.runtime.wire.copying import Carrier
from headrace.runtime.wire.wire_types import WireError
from headrace.runtime.workers import Placement, WorkerError, WorkerLost

Make = Callable[[], Awaitable[tuple[WorkerHost, Service]]]


class LocalWorker:
    """A `Peer`."""

    def __init__(
        self, name: str, rank: int, make: Make, services: Services, carrier: Carrier, where: Placement
    ) -> None:
        self.name = name
        self.rank = rank
        self.lost: str | None = "it is not made yet"
        self._make = make
        self._services = services
        self._carrier = carrier
        self._where = where
        self._host: WorkerHost | None = None
        self._service: Service | None = None
        self._asked: dict[int, Asked] = {}
        self._listeners: list[Callable[[], None]] = []

    @property
    def clock(self) -> Clock:
        return self._services.clock

    def when_lost(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        """Raises WorkerError, WaitTimeout."""
        self.lost = "it is not made yet"
        asked = Asked(lambda: making.cancel(), self.lose)
        making = self._answer(asked, self._made(), f"making {self.name}")
        await answered(asked, self.clock, self._where.start_s, f"{self.name} to be made")
        self.lost = None

    async def call(self, method: str, *args: Any, what: str, seconds: float | None = None) -> Any:
        """See `Workers.call`; the one answer."""
        service, what = self.service, f"{what} ({method} of {self.name})"
        carried = self._carrier.carry(args, f"the arguments of {self.name}.{method}")

        async def call() -> Any:
            return self._back(await service.call(method, carried), f"the answer of {self.name}.{method}")

        asked = Asked(lambda: task.cancel(), self.lose)
        task = self._answer(asked, call(), f"{self.name}.{method}")
        return await answered(asked, self.clock, self._seconds(seconds), what)

    async def stream(
        self, method: str, *args: Any, what: str, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """See `Workers.stream`."""
        service, what = self.service, f"{what} ({method} of {self.name})"
        carried = self._carrier.carry(args, f"the arguments of {self.name}.{method}")
        window = asyncio.Semaphore(WINDOW)
        incoming = Incoming(window.release)

        async def emit(item: Any) -> None:
            await window.acquire()
            incoming.put(self._back(item, f"an item of {self.name}.{method}"))

        asked = Asked(lambda: task.cancel(), self.lose)
        task = self._answer(asked, service.stream(method, carried, emit), f"{self.name}.{method}")
        async with aclosing(incoming.read(asked, self.clock, self._seconds(seconds), what)) as items:
            async for item in items:
                yield item

    def lose(self, reason: str) -> None:
        """From now on it is no more, whatever it still does."""
        if self.lost is not None:
            return
        self.lost = reason
        asked, self._asked = self._asked, {}
        for each in asked.values():
            if not each.answer.done():
                each.answer.set_exception(self._loss())
                each.stop()
        if self._host is not None:
            self._host.end()
        for listener in self._listeners:
            listener()

    async def cleared(self) -> None:
        """See `Member.cleared`: what it still does is nobody's."""

    async def close(self) -> None:
        """Its own `close`, then its end. Raises WorkerError, WorkerLost, WaitTimeout."""
        if self.lost is None and self._service is not None:
            try:
                if self._service.closes:
                    await self.call("close", what="its end", seconds=END_S)
            finally:
                self.lose("it was closed")

    async def _made(self) -> None:
        self._host, self._service = await self._make()

    @property
    def here(self) -> object | None:
        """See `Peer.here`."""
        if self._carrier.copies or self.lost is not None or self._service is None:
            return None
        return self._service.worker

    @property
    def service(self) -> Service:
        """Raises WorkerLost."""
        if self.lost is not None or self._service is None:
            raise self._loss()
        return self._service

    def _loss(self) -> WorkerLost:
        return WorkerLost(self.rank, self.lost or "", worker=self.name)

    def _back(self, value: Any, what: str) -> Any:
        try:
            return self._carrier.carry(value, what)
        except WireError as error:
            raise WorkerError(self.rank, "WireError", str(error), worker=self.name) from error

    def _seconds(self, seconds: float | None) -> float:
        return self._where.deadline_s if seconds is None else seconds

    def _answer(self, asked: Asked, work: Any, name: str) -> asyncio.Task[Any]:
        """Do the work, in a task; its end is the answer."""
        task = self._services.spawn(work, name)
        self._asked[id(asked)] = asked

        def end(done: asyncio.Task[Any]) -> None:
            self._asked.pop(id(asked), None)
            error = None if done.cancelled() else done.exception()
            if asked.answer.done():
                return
            if done.cancelled():
                stopped = WorkerError(self.rank, "CancelledError", "it was stopped", worker=self.name)
                asked.answer.set_exception(stopped)
            elif error is not None:
                asked.answer.set_exception(error)
            else:
                asked.answer.set_result(done.result())

        task.add_done_callback(end)
        return task
