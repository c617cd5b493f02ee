"""What a run's workers stand on, where that can end under them: a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn, Protocol, TypeVar, runtime_checkable

from headrace.errors import HeadraceError
from headrace.runtime.protocol import Services, WaitTimeout
from headrace.runtime.refs import RefLost
from headrace.runtime.workers import WorkerError, WorkerLost

T = TypeVar("T")

_SAID_S = 10.0
"""In which it is known that the ground has ended, once something fails that stood on it: a look at it may wait 5 s for
an answer, and the one after it is the first that sees it."""
_END_S = 10.0
"""In which what stood on it ends."""
_FOLLOWS = (WorkerLost, WorkerError, RefLost, WaitTimeout, OSError)
"""What else may be raised for it."""


class GroundLost(HeadraceError, RuntimeError):
    """It has ended; the run can be resumed."""


class ColumnsLost(HeadraceError, RuntimeError):
    """Whoever knew where columns are has ended, and all of them with it. Another one is there."""


@runtime_checkable
class Ground(Protocol):
    async def ended(self) -> NoReturn:
        """Raises GroundLost once it has ended."""

    async def columns_lost(self) -> NoReturn:
        """Raises ColumnsLost once they are, and can be put again; GroundLost if they cannot."""


async def on_ground(ground: Ground, work: Coroutine[Any, Any, T], services: Services) -> T:
    """What `work` gives, which is cancelled where its ground ends. Raises GroundLost, also in the place of an error
    that follows from that."""
    watch = services.spawn(ground.ended(), "ground")
    working = services.spawn(work, "run")
    try:
        await asyncio.wait([watch, working], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            watch.result()
        try:
            return working.result()
        except _FOLLOWS as error:
            await asyncio.wait([watch], timeout=_SAID_S)
            if watch.done():
                raise watch.exception() or error from error
            raise
    finally:
        for task in (watch, working):
            task.cancel()
        # It may ask who is there no more; whoever closes the runtime ends it then.
        await asyncio.wait([watch, working], timeout=_END_S if watch.done() else None)
