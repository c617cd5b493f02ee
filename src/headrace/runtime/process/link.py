"""The asking side of a connection to another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from itertools import count
from pathlib import Path
from typing import Any

from headrace.runtime.local.awaited import Asked, Incoming, answered
from headrace.runtime.process.channel import Channel
from headrace.runtime.process.frames import Frame, FrameError, Kind
from headrace.runtime.process.shared_memory import Segments
from headrace.runtime.protocol import Services
from headrace.runtime.wire.wire_format import Parcel
from headrace.runtime.wire.wire_types import WireError, WireTypes
from headrace.runtime.workers import WorkerError, WorkerLost

_ANSWERS = (Kind.ANSWER, Kind.COLUMNS, Kind.ERROR, Kind.ABSENT)
FETCH_S = 60.0
"""In which whoever keeps a ref has to answer."""


class Link:
    """To the process that has the workers of one socket."""

    def __init__(self, channel: Channel, services: Services, name: str, rank: int) -> None:
        self._channel = channel
        self._services = services
        self._name = name
        self._rank = rank
        self._numbers = count()
        self._asked: dict[int, Asked] = {}
        self._incoming: dict[int, Incoming] = {}
        self._ended: str | None = None
        self.heard = 0
        """Frames that came."""
        self.give_up: Callable[[str], None] = lambda reason: None
        """What is done with a worker that does not stop."""
        self.when_cut: Callable[[str], None] = self.end
        """What is done when the other side ends the connection; comes to `end`."""
        self._reading = services.spawn(self._read(), f"link to {name}")

    @classmethod
    async def open(
        cls, path: Path, types: WireTypes, segments: Segments, services: Services, name: str, rank: int
    ) -> Link:
        """Raises OSError if nobody listens there."""
        reader, writer = await asyncio.open_unix_connection(path)
        return cls(Channel(reader, writer, types, segments, path.parent), services, name, rank)

    @property
    def is_open(self) -> bool:
        return self._ended is None

    @property
    def is_cut(self) -> bool:
        """Whether the other side has ended the connection: nothing more is heard, and why is not known yet."""
        return self._reading.done()

    async def build(self, spec: object, seconds: float) -> None:
        """Have the worker made. Raises WorkerError, WorkerLost, WaitTimeout, WireError."""
        call, asked = await self._ask(Kind.BUILD, spec, f"the spec of {self._name}")
        asked.stop = lambda: self._give_up(call, f"it was not made within {seconds:.1f} s")
        await answered(asked, self._services.clock, seconds, f"{self._name} to be made")

    async def call(self, method: str, args: tuple[Any, ...], what: str, seconds: float) -> Any:
        """See `Workers.call`."""
        _, asked = await self._ask(Kind.CALL, args, f"the arguments of {self._name}.{method}", method)
        return await answered(asked, self._services.clock, seconds, f"{what} ({method} of {self._name})")

    async def stream(self, method: str, args: tuple[Any, ...], what: str, seconds: float) -> AsyncGenerator[Any, None]:
        """See `Workers.stream`."""
        incoming = Incoming(lambda: self._channel.tell(Kind.MORE, call))
        call, asked = await self._ask(
            Kind.STREAM, args, f"the arguments of {self._name}.{method}", method, incoming=incoming
        )
        what = f"{what} ({method} of {self._name})"
        async with aclosing(incoming.read(asked, self._services.clock, seconds, what)) as items:
            async for item in items:
                yield item

    async def fetch(self, keeper: str, numbers: Sequence[int]) -> list[Parcel | None]:
        """Columns of its refs of these numbers, packed, or of the first of them; None for what is not kept any more.
        Raises WorkerLost."""
        _, asked = await self._ask(Kind.FETCH, [keeper, [*numbers]], "refs")
        found: list[Parcel | None] = await answered(
            asked, self._services.clock, FETCH_S, f"columns kept by {keeper or 'the run'}"
        )
        return found

    async def free(self, keeper: str, numbers: Sequence[int]) -> None:
        """See `Services.free`."""
        with suppress(ConnectionError):
            await self._channel.send(Kind.FREE, next(self._numbers), [keeper, [*numbers]], "refs")

    def leave(self) -> None:
        """Tell the process to end."""
        self._channel.tell(Kind.LEAVE)

    def end(self, reason: str) -> None:
        """Nothing more is asked; what was is lost."""
        if self._ended is not None:
            return
        self._ended = reason
        self._channel.close()
        self._reading.cancel()
        asked, self._asked = self._asked, {}
        for each in asked.values():
            if not each.answer.done():
                each.answer.set_exception(self._loss(reason))

    async def _ask(
        self, kind: Kind, value: Any, what: str, method: str = "", *, incoming: Incoming | None = None
    ) -> tuple[int, Asked]:
        if self._ended is not None:
            raise self._loss(self._ended)
        call = next(self._numbers)
        asked = Asked(lambda: self._channel.tell(Kind.STOP, call), lambda reason: self._give_up(call, reason))
        self._asked[call] = asked
        if incoming is not None:
            self._incoming[call] = incoming
        try:
            await self._channel.send(kind, call, value, what, self._name, method)
        except ConnectionError:
            pass  # `end` answers it, with the reason
        except BaseException:
            self._forget(call)
            raise
        return call, asked

    def _give_up(self, call: int, reason: str) -> None:
        self.give_up(reason)
        asked = self._forget(call)
        if asked is not None and not asked.answer.done():
            asked.answer.set_exception(self._loss(reason))

    def _forget(self, call: int) -> Asked | None:
        self._incoming.pop(call, None)
        return self._asked.pop(call, None)

    def _loss(self, reason: str) -> WorkerLost:
        return WorkerLost(self._rank, reason, worker=self._name)

    async def _read(self) -> None:
        reason = "its connection ended"
        try:
            while (frame := await self._channel.read()) is not None:
                self.heard += 1
                self._take(frame)
        except (FrameError, OSError) as error:
            reason = f"its connection is of no use: {error}"
        except asyncio.CancelledError:
            # All tasks are cancelled, and those that ask would wait for the end of what they have asked for.
            self.end("its connection is not read any more")
            raise
        self.when_cut(reason)

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.ITEM:
            self._item(frame)
            return
        asked = self._forget(frame.call) if frame.kind in _ANSWERS else None
        if asked is None or asked.answer.done():
            return
        if frame.is_gone:
            asked.answer.set_exception(self._loss("what it answered is gone with it"))
            return
        try:
            if frame.kind is Kind.COLUMNS:
                asked.answer.set_result(self._channel.columns(frame))
                return
            value = self._channel.value(frame, f"the answer of {self._name}")
        except (WireError, FrameError, OSError) as error:  # what lies in memory may be more than can be opened
            asked.answer.set_exception(self._unreadable(error))
            return
        if frame.kind is Kind.ANSWER:
            asked.answer.set_result(value)
        elif frame.kind is Kind.ABSENT:
            asked.answer.set_exception(self._loss(value))
        else:
            type, text, trace = value
            asked.answer.set_exception(WorkerError(self._rank, type, text, worker=self._name, trace=trace))

    def _item(self, frame: Frame) -> None:
        incoming, asked = self._incoming.get(frame.call), self._asked.get(frame.call)
        if incoming is None or asked is None or asked.answer.done() or frame.is_gone:
            return
        try:
            incoming.put(self._channel.value(frame, f"an item of {self._name}"))
        except WireError as error:
            self._channel.tell(Kind.STOP, frame.call)
            asked.answer.set_exception(self._unreadable(error))

    def _unreadable(self, error: Exception) -> WorkerError:
        return WorkerError(self._rank, type(error).__name__, str(error), worker=self._name)
