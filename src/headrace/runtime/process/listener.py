"""The answering side: the workers of this process and what they keep, for whoever connects."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from headrace.runtime.local.awaited import WINDOW
from headrace.runtime.local.service import Service, as_worker_error
from headrace.runtime.process.bundle import Kept, bundled
from headrace.runtime.process.channel import Channel
from headrace.runtime.process.frames import Frame, FrameError, Kind
from headrace.runtime.process.shared_memory import Segments
from headrace.runtime.protocol import Services
from headrace.runtime.refs import Ref
from headrace.runtime.wire.wire_types import WireError, WireTypes
from headrace.runtime.workers import WorkerError, WorkerLost

BEAT_S = 0.5


class Shown(Protocol):
    """Where columns are kept that others may read."""

    def kept(self, keeper: str, numbers: Sequence[int]) -> Sequence[Kept | None]:
        """None for what is not kept any more."""

    def free(self, ref: Ref) -> None: ...


class Server:
    def __init__(
        self,
        services: Services,
        types: Callable[[], WireTypes],
        segments: Segments,
        folder: Path,
        *,
        find: Callable[[str], Service],
        shown: Shown,
        build: Callable[[Any], Awaitable[None]] | None = None,
        leave: Callable[[], None] | None = None,
    ) -> None:
        """`find` gives a worker by name, or raises WorkerLost. `build` and `leave` for a process that has a parent."""
        self._services = services
        self._types = types
        self._segments = segments
        self._folder = folder
        self._find = find
        self._shown = shown
        self._build = build
        self._leave = leave

    async def listen(self, listening: socket.socket) -> asyncio.Server:
        """Answer whoever connects, until the server is closed."""
        return await asyncio.start_unix_server(self._connected, sock=listening)

    async def answer_only(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer whoever is at the other end, on another machine, until the connection ends."""
        await _Connection(self, Channel(reader, writer, self._types())).run()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer, self._types(), self._segments, self._folder)
        with contextlib.suppress(asyncio.CancelledError):  # at the end of the event loop, which would print it
            await _Connection(self, channel).run()

    async def answer(self, frame: Frame, channel: Channel, emit: Callable[[Any], Awaitable[None]]) -> None:
        """Do what `frame` asks for, and send what came of it."""
        what = f"{frame.worker}.{frame.method}"
        try:
            if frame.kind is Kind.FETCH:
                keeper, numbers = channel.value(frame, "refs")
                await channel.hand_over(Kind.COLUMNS, frame.call, bundled(self._shown.kept(keeper, numbers)))
                return
            answer = None
            if frame.kind is Kind.BUILD:
                if self._build is None:
                    raise LookupError("nothing is made here")
                await self._build(channel.value(frame, f"the spec of {frame.worker}"))
            else:
                try:
                    service = self._find(frame.worker)
                except WorkerLost as lost:
                    await channel.send(Kind.ABSENT, frame.call, lost.reason, "a reason")
                    return
                args = channel.value(frame, f"the arguments of {what}")
                if frame.kind is Kind.STREAM:
                    await service.stream(frame.method, args, emit)
                else:
                    answer = await service.call(frame.method, args)
            await channel.send(Kind.ANSWER, frame.call, answer, f"the answer of {what}")
        except asyncio.CancelledError:
            await self._fail(frame, channel, WorkerError(0, "CancelledError", "it was stopped"))
            raise
        except ConnectionError:
            raise
        except Exception as error:
            await self._fail(frame, channel, error)

    async def _fail(self, frame: Frame, channel: Channel, error: Exception) -> None:
        raised = error if isinstance(error, WorkerError) else as_worker_error(error, frame.worker, 0)
        with contextlib.suppress(ConnectionError):
            await channel.send(Kind.ERROR, frame.call, [raised.type, raised.text, raised.trace], "an error")

    def spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        return self._services.spawn(work, name)

    def free(self, keeper: str, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._shown.free(Ref(keeper, number, ()))

    def leave(self) -> None:
        if self._leave is not None:
            self._leave()

    async def beat(self, channel: Channel) -> None:
        """Until the connection ends."""
        with contextlib.suppress(ConnectionError):
            while True:
                channel.tell(Kind.BEAT)
                await self._services.clock.sleep(BEAT_S)


class _Connection:
    """Whoever ends it has nothing done for it any more."""

    def __init__(self, server: Server, channel: Channel) -> None:
        self._server = server
        self._channel = channel
        self._calls: dict[int, asyncio.Task[Any]] = {}
        self._windows: dict[int, asyncio.Semaphore] = {}
        self._beating: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        try:
            while (frame := await self._channel.read()) is not None:
                self._take(frame)
        except (FrameError, WireError, OSError):  # whoever sent that is none of ours, or has gone
            pass
        finally:
            if self._beating is not None:
                self._beating.cancel()
            for task in list(self._calls.values()):
                task.cancel()
            self._channel.close()

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.STOP:
                if frame.call in self._calls:  # not before it has begun, or it could not answer
                    asyncio.get_running_loop().call_soon(self._calls[frame.call].cancel)
            case Kind.MORE:
                if frame.call in self._windows:
                    self._windows[frame.call].release()
            case Kind.FREE:
                self._server.free(*self._channel.value(frame, "refs"))
            case Kind.LEAVE:
                self._server.leave()
            case Kind.BUILD | Kind.CALL | Kind.STREAM | Kind.FETCH:
                if frame.kind is Kind.BUILD:
                    self._beating = self._server.spawn(self._server.beat(self._channel), "beat")
                self._begin(frame)
            case _:
                raise FrameError(f"nobody asked for {frame.kind}")

    def _begin(self, frame: Frame) -> None:
        if frame.kind is Kind.STREAM:
            self._windows[frame.call] = asyncio.Semaphore(WINDOW)
        work = self._server.answer(frame, self._channel, lambda item: self._emit(frame, item))
        task = self._calls[frame.call] = self._server.spawn(work, f"{frame.worker}.{frame.method}")
        task.add_done_callback(lambda done: self._end(frame.call, done))

    def _end(self, call: int, done: asyncio.Task[Any]) -> None:
        self._calls.pop(call, None)
        self._windows.pop(call, None)
        if not done.cancelled():
            done.exception()  # nobody is there to be told

    async def _emit(self, frame: Frame, item: Any) -> None:
        await self._windows[frame.call].acquire()
        await self._channel.send(Kind.ITEM, frame.call, item, f"an item of {frame.worker}.{frame.method}")
