"""A run on a thread of its own, with an event loop of its own, while the caller waits in a way that can be ended.

The thread is there also where the caller has no event loop: then the main thread is free to be interrupted, whatever
the run is busy with.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headrace.api.errors import for_caller
from headrace.config.errors import ConfigError
from headrace.runtime.lane_thread import LaneThread

if TYPE_CHECKING:
    from headrace.controller.stopping import StopRequest

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_IN_USE = threading.Lock()
"""Of a process, since its threads for compute and its one watchdog's timer are."""


class Stop(Protocol):
    """What ends the work early and cleanly."""

    def request_soon(self, reason: str) -> None: ...


def stop_request(words: str) -> StopRequest:
    """What ends a run; `words` are said of it."""
    from headrace.controller.stopping import StopRequest  # its package takes a second to import

    return StopRequest(words)


async def unless(stop: StopRequest, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` gives; None if it was cancelled, because `stop` was requested."""
    with stop:
        task, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None


def wait(call: Callable[[], T], stop: Stop) -> tuple[T, str]:
    """What `call` returns, on a thread of its own; and the name of the signal that came meanwhile, if one did.

    In the main thread the first SIGINT or SIGTERM is a request to stop, and the second leaves the thread behind with
    KeyboardInterrupt. Raises what `call` raises, and ConfigError where one is running already.
    """
    future = _begin(call)
    with _signals(stop) as received:
        try:
            result = future.result()
        except KeyboardInterrupt:
            if not future.done():
                raise KeyboardInterrupt(
                    "a second signal: the run is left behind on its thread, and goes on to its end there if it can"
                ) from None
            raise
        except BaseException as error:
            raise for_caller(error) from None
    return result, received[0] if received else ""


async def wait_async(call: Callable[[], T], stop: Stop) -> T:
    """As `wait`, but the caller's loop goes on. Whoever cancels it waits until the run has stopped."""
    future = asyncio.wrap_future(_begin(call))
    try:
        await asyncio.wait({future})
    except asyncio.CancelledError:
        stop.request_soon("cancellation")
        await asyncio.wait({future})
        if not future.cancelled():
            future.exception()  # what went wrong is in the record, and the caller asked for an end
        raise
    try:
        return future.result()
    except BaseException as error:
        raise for_caller(error) from None


def _begin(call: Callable[[], T]) -> Future[T]:
    if not _IN_USE.acquire(blocking=False):
        raise ConfigError(
            "this process has a run that goes on, and has the processors for one; wait for it, or use another process"
        )
    thread = LaneThread("run")
    future = thread.submit(call)

    def end(ended: Future[T]) -> None:
        thread.close()
        _IN_USE.release()

    future.add_done_callback(end)
    return future


@contextmanager
def _signals(stop: Stop) -> Iterator[list[str]]:
    """Gives the names of the signals that came."""
    received: list[str] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number).name)
        if len(received) > 1:
            raise KeyboardInterrupt
        stop.request_soon(received[0])

    before: dict[int, Any] = {}
    with suppress(ValueError):  # not the main thread, which alone gets signals
        before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
