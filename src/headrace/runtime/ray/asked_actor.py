"""The asking side: an actor as a worker is spoken to. Of the controller and of other actors alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from headrace.runtime.local.awaited import STOP_S, Asked, answered, stopped
from headrace.runtime.protocol import Services, WaitTimeout
from headrace.runtime.ray.boxes import Box, boxed, opened
from headrace.runtime.wire.wire_types import WireError, WireTypes
from headrace.runtime.workers import WorkerError, WorkerLost

ANSWER, ERROR = "answer", "error"


class AskedActor:
    """Calls have numbers of whoever asks: `prefix` and a count, in whose order they begin."""

    def __init__(
        self, actor: Any, types: Callable[[], WireTypes], services: Services, name: str, rank: int, prefix: str
    ) -> None:
        """`actor`: Ray's handle of an `Actor`. `prefix`: `Asker.prefix`, and what no two of that
        asker ever have in common."""
        self._actor = actor
        self._types = types
        self._services = services
        self._name = name
        self._rank = rank
        self._prefix = prefix
        self._count = 0
        self._asked: dict[str, Asked] = {}
        self._ended: str | None = None
        self.give_up: Callable[[str], None] = lambda reason: None
        """What is done with a worker that does not stop."""

    async def build(self, spec: object, seconds: float) -> None:
        """Have the worker made. Raises WorkerError, WorkerLost, WaitTimeout, WireError."""
        box = boxed(spec, self._types(), f"the spec of {self._name}")
        _, asked = self._ask(lambda number: self._actor.build.remote(number, box))
        asked.stop = lambda: asked.give_up(f"it was not made within {seconds:.1f} s")
        await answered(asked, self._services.clock, seconds, f"{self._name} to be made")

    async def call(self, method: str, args: tuple[Any, ...], what: str, seconds: float) -> Any:
        """See `Workers.call`."""
        box = boxed(args, self._types(), f"the arguments of {self._name}.{method}")
        _, asked = self._ask(lambda number: self._actor.call.remote(number, method, box))
        return await answered(asked, self._services.clock, seconds, f"{what} ({method} of {self._name})")

    async def stream(self, method: str, args: tuple[Any, ...], what: str, seconds: float) -> AsyncGenerator[Any, None]:
        """See `Workers.stream`. Items are fetched as many as there are, so the worker is no more ahead than that."""
        what, clock = f"{what} ({method} of {self._name})", self._services.clock
        box = boxed(args, self._types(), f"the arguments of {self._name}.{method}")
        number, asked = self._ask(lambda number: self._actor.stream.remote(number, method, box))
        try:
            while True:
                fetching = asyncio.ensure_future(self._items(number))
                try:
                    items = await clock.wait_for(asyncio.shield(fetching), seconds, what)
                finally:
                    if not fetching.done():
                        fetching.cancel()
                for item in items:
                    yield item
                if not items:
                    break
            await clock.wait_for(asyncio.shield(asked.answer), seconds, what)
        except WaitTimeout as late:
            await stopped(asked, STOP_S, what)
            if asked.answer.done() and isinstance(asked.answer.exception(), WorkerLost):
                raise asked.answer.exception() from late  # type: ignore[misc]
            raise
        finally:
            await stopped(asked, STOP_S, what)

    async def _items(self, number: str) -> list[Any]:
        """Those that came since; none once there are no more. Raises WorkerLost."""
        try:
            boxes: list[Box] = await self._actor.items.remote(number)
        except RayError as error:
            raise self._loss(reason_of(error)) from error
        return [opened(box, self._types(), f"an item of {self._name}") for box in boxes]

    async def turns(self) -> str:
        """Once its event loop has turned: its node. Raises WorkerLost."""
        try:
            node: str = await self._actor.beat.remote()
        except RayError as error:
            raise self._loss(reason_of(error)) from error
        return node

    async def life(self) -> str:
        """Once it has ended: why."""
        try:
            why: str = await self._actor.life.remote()
        except RayError as error:
            return reason_of(error)
        return why

    def leave(self) -> None:
        """Tell it to end."""
        with suppress(RayError):
            self._actor.leave.remote()

    def kill(self) -> None:
        with suppress(RayError):
            ray.kill(self._actor, no_restart=True)

    def end(self, reason: str) -> None:
        """Nothing more is asked; what was is lost."""
        if self._ended is not None:
            return
        self._ended = reason
        asked, self._asked = self._asked, {}
        for each in asked.values():
            if not each.answer.done():
                each.answer.set_exception(self._loss(reason))

    def _ask(self, begin: Callable[[str], Any]) -> tuple[str, Asked]:
        if self._ended is not None:
            raise self._loss(self._ended)
        number = f"{self._prefix}.{self._count}"
        answer = begin(number)
        self._count += 1  # one that could not be asked is nobody's to wait for
        asked = Asked(lambda: self._stop(number), lambda reason: self._give_up(number, reason))
        self._asked[number] = asked
        self._services.spawn(self._answer(number, asked, answer), f"answer of {self._name}")
        return number, asked

    async def _answer(self, number: str, asked: Asked, answer: Any) -> None:
        try:
            kind, box = await answer
            value = opened(box, self._types(), f"the answer of {self._name}")
        except RayError as error:
            self._settle(number, asked, self._loss(reason_of(error)))
        except WireError as error:
            self._settle(number, asked, WorkerError(self._rank, type(error).__name__, str(error), worker=self._name))
        except asyncio.CancelledError:
            self._settle(number, asked, self._loss("its answer is not waited for any more"))
            raise
        else:
            if kind == ERROR:
                name, text, trace = value
                value = WorkerError(self._rank, name, text, worker=self._name, trace=trace)
            self._settle(number, asked, value)

    def _settle(self, number: str, asked: Asked, value: Any) -> None:
        self._asked.pop(number, None)
        if asked.answer.done():
            return
        if isinstance(value, WorkerError | WorkerLost):
            asked.answer.set_exception(value)
        else:
            asked.answer.set_result(value)

    def _stop(self, number: str) -> None:
        with suppress(RayError):
            self._actor.stop.remote(number)

    def _give_up(self, number: str, reason: str) -> None:
        self.give_up(reason)
        asked = self._asked.pop(number, None)
        if asked is not None and not asked.answer.done():
            asked.answer.set_exception(self._loss(reason))

    def _loss(self, reason: str) -> WorkerLost:
        return WorkerLost(self._rank, self._ended or reason, worker=self._name)


def reason_of(error: Exception) -> str:
    """Of an actor's end, in Ray's words, on one line."""
    words = " ".join(str(error).split())
    return words if len(words) <= 400 else f"{words[:400]}..."
