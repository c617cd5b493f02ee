"""An event loop for code that blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

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
