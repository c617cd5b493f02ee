"""An event loop, and a lane, for code that blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from headrace.runtime.inline import InlineRuntime

T = TypeVar("T")


class TurnedLoop:
    """Turns while one of its coroutines is run, on the thread that runs it, and rests in between: what it hears from
    others meanwhile waits, and counts for no silence."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result. In the main thread signals are handled meanwhile, as elsewhere. Raises RuntimeError where a loop
        runs on this thread already."""
        return self._runner.run(coroutine)

    def close(self) -> None:
        """Cancels what is left."""
        self._runner.close()


class WatchedLane:
    """Computes on a thread of its own while whoever asked waits, as long as it gets on."""

    def __init__(self, name: str, limits: Mapping[str, float]) -> None:
        """`limits`: see `Progress`."""
        self._name = name
        self._loop = TurnedLoop()
        self._runtime = InlineRuntime(limits=limits)

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """What it gives. Raises what it raises, and Stuck where it makes no progress, as it says itself: it is left to
        its thread."""
        return self._loop.run(self._runtime.compute(self._name, function, *args))

    def close(self) -> None:
        """Waits some seconds for a call that was interrupted."""
        try:
            self._loop.run(self._runtime.close())
        finally:
            self._loop.close()
