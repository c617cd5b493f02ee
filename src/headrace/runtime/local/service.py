"""One worker in the process where it is: which of its methods can be called, and where they run."""

from __future__ import annotations

import asyncio
import inspect
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar, cast

from headrace.errors import HeadraceError
from headrace.runtime.protocol import Services
from headrace.runtime.workers import WorkerError

if TYPE_CHECKING:
    from headrace.runtime.inline import ThreadPlacement

T = TypeVar("T")

STANDING = "standing"
"""Asked of any worker: how far the call on its lane is, as `Standing` has it; None where there is none. Its event loop
answers, whatever the lane does."""
_END = object()
_PASS = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)
"""Are no answer. Whatever else is raised is one: there are exceptions that are no `Exception`, as of a Rust extension
that panics, and who has asked must hear of them."""
_MOST_TEXT = 1 << 16
"""Characters of an error."""


def lane_of(worker: str) -> str:
    """Of a worker, by its name: that of its kind, and for the second and later ones with the rank."""
    return worker.removesuffix("/0")


class Service:
    def __init__(self, worker: object, name: str, rank: int, services: Services) -> None:
        """`services` of the event loop; blocking methods run on the worker's lane."""
        self._worker = worker
        self._name = name
        self._lane = lane_of(name)
        self._rank = rank
        self._services = services

    @classmethod
    async def make(
        cls,
        kind: Callable[[Any, Any], object],
        spec: object,
        host: object,
        name: str,
        rank: int,
        services: Services,
        place: Callable[[ThreadPlacement], None] | None = None,
    ) -> Service:
        """Of a worker that is made on its lane. `place`: has lanes run as they are to be, where they are this worker's
        alone. Raises WorkerError."""
        try:
            if place is not None and (lanes := _own_lanes(kind, spec, host)) is not None:
                place(lanes)
            worker = await on_lane(services, lane_of(name), kind, spec, host)
        except _PASS:
            raise
        except BaseException as error:
            raise as_worker_error(error, name, rank) from error
        return cls(worker, name, rank, services)

    async def call(self, method: str, args: Sequence[Any]) -> Any:
        """What the method returns. Raises WorkerError for whatever it raises."""
        if method == STANDING:
            standing = self._services.standing(self._lane)
            return None if standing is None else [standing.marks, standing.waits]
        try:
            function = self._method(method)
            if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
                raise TypeError(f"{method} yields; ask for it as a stream")
            if inspect.iscoroutinefunction(function):
                return await function(*args)
            return await on_lane(self._services, self._lane, function, *args)
        except _PASS:
            raise
        except BaseException as error:
            raise as_worker_error(error, self._name, self._rank) from error

    async def stream(self, method: str, args: Sequence[Any], emit: Callable[[Any], Awaitable[None]]) -> None:
        """Hand each item that the method yields to `emit`, which may wait. Raises WorkerError."""
        try:
            function = self._method(method)
            if inspect.isasyncgenfunction(function):
                async with aclosing(function(*args)) as items:
                    async for item in items:
                        await emit(item)
            elif inspect.isgeneratorfunction(function):
                await self._blocking_stream(function(*args), emit)
            else:
                raise TypeError(f"{method} yields nothing; call it")
        except _PASS:
            raise
        except BaseException as error:
            raise as_worker_error(error, self._name, self._rank) from error

    @property
    def worker(self) -> object:
        return self._worker

    @property
    def closes(self) -> bool:
        """Whether it has an end of its own: a method `close`."""
        return callable(getattr(self._worker, "close", None))

    async def _blocking_stream(self, items: Iterator[Any], emit: Callable[[Any], Awaitable[None]]) -> None:
        try:
            while (item := await on_lane(self._services, self._lane, next, items, _END)) is not _END:
                await emit(item)
        finally:
            await on_lane(self._services, self._lane, items.close)  # type: ignore[attr-defined]

    def _method(self, name: str) -> Callable[..., Any]:
        kind = type(self._worker)
        if name.startswith("_") or not inspect.isfunction(inspect.getattr_static(kind, name, None)):
            public = sorted(
                each for each, _ in inspect.getmembers(kind, inspect.isfunction) if not each.startswith("_")
            )
            raise LookupError(f"{kind.__name__} has no method {name[:60]!r}; it has {', '.join(public)}")
        function: Callable[..., Any] = getattr(self._worker, name)
        return function


def _own_lanes(kind: Any, spec: object, host: object) -> ThreadPlacement | None:
    says: Callable[[object, object], ThreadPlacement | None] | None = getattr(kind, "lanes", None)
    return None if says is None else says(spec, host)


async def on_lane(services: Services, lane: str, function: Callable[..., T], *args: Any) -> T:
    """As `compute`. But a caller that is cancelled stops waiting only where the work has not begun; else it waits for
    its end."""
    lock, begun, is_left = threading.Lock(), False, False

    def run() -> tuple[T | None, BaseException | None]:
        nonlocal begun
        with lock:
            if is_left:
                return None, None
            begun = True
        try:
            return function(*args), None
        except BaseException as error:  # no event loop could carry SystemExit and StopIteration
            return None, error

    work = services.spawn(services.compute(lane, run), f"call on {lane}")
    try:
        value, error = await asyncio.shield(work)
    except asyncio.CancelledError:
        with lock:
            is_left = not begun
        if begun and not work.done():
            await asyncio.wait([work])
        raise
    if error is not None:
        raise error
    return cast(T, value)


def as_worker_error(error: BaseException, worker: str, rank: int) -> WorkerError:
    trace = "" if isinstance(error, HeadraceError) else "".join(traceback.format_exception(error))
    return WorkerError(rank, type(error).__name__, _text_of(error), worker=worker, trace=trace[-_MOST_TEXT:])


def _text_of(error: BaseException) -> str:
    """Plain text of a bounded length, whatever the error's own class makes of itself."""
    try:
        return "".join((str(error),))[:_MOST_TEXT]
    except Exception as other:
        return f"an error without words: its text raises {type(other).__name__}"
