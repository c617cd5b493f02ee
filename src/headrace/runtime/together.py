"""Several coroutines as one, whose end is the same in every process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(coroutines: Iterable[Coroutine[Any, Any, T]], names: Iterable[str] = ()) -> list[T]:
    """The result of each, in their order. The first that fails ends the others, and its error is raised once all have
    ended; so are they all if the caller is cancelled. `names` of their tasks; a single one is the caller's own.

    Tasks are begun and cancelled in their order: `asyncio.TaskGroup` cancels in the order of addresses, which no seed
    fixes.
    """
    named, coroutines = [*names], [*coroutines]
    if len(coroutines) == 1:
        return [await coroutines[0]]
    tasks = [
        asyncio.create_task(coroutine, name=named[place] if place < len(named) else None)
        for place, coroutine in enumerate(coroutines)
    ]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.gather(*left, return_exceptions=True)
        # Also where the caller is cancelled in the turn in which one fails: nobody else asks for these.
        errors = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    if errors:
        raise errors[0]
    return [task.result() for task in tasks]


async def to_the_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Its result. Who is cancelled meanwhile does not cancel it, and waits until it has ended all the same."""
    task = asyncio.create_task(coroutine)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise
