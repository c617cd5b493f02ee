"""Which object of Ray's a ref is in: one actor of a run knows. The controller, where most are asked for, is no actor
that could be asked."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import Any

SHELF = "shelf"
_ON_ITS_WAY_S = 5.0
"""In which what a process has put is known here: a message of its own goes another way than the ref."""

Key = tuple[str, int]
"""A keeper, and which of its refs."""
Held = tuple[Any, list[int], str]
"""A bundle: the object, the numbers of all refs in it, and whose they are."""


class Shelf:
    """An actor. A keeper's refs come in bundles, with numbers in their order: what is below the last one, and is not
    here, was freed."""

    def __init__(self) -> None:
        self._bundles: dict[Key, tuple[Any, list[int], set[int]]] = {}
        """By keeper and first number: the object, all numbers in it, and those that are not freed."""
        self._first: dict[Key, int] = {}
        """Of each ref that is not freed the first number of its bundle."""
        self._last: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        """Numbers below this are of a keeper that ended."""
        self._life = secrets.token_hex(8)
        self._freed_early: set[Key] = set()
        self._came = asyncio.Condition()

    async def keep(self, keeper: str, numbers: list[int], held: list[Any]) -> None:
        """`numbers`: of the refs in the object, in order. `held`: the object, in a list, or Ray would hand over what it
        is."""
        async with self._came:
            self._last[keeper] = max(numbers[-1], self._last.get(keeper, -1))
            early = {number for number in numbers if (keeper, number) in self._freed_early}
            self._freed_early -= {(keeper, number) for number in early}
            left = {number for number in numbers if number >= self._gone.get(keeper, 0)} - early
            if left:
                self._bundles[keeper, numbers[0]] = held[0], numbers, left
                self._first.update({(keeper, number): numbers[0] for number in left})
            self._came.notify_all()

    async def find_all(self, keys: list[Key]) -> list[Held]:
        """The bundles that have them. What is in none went."""
        await self._on_their_way(keys)
        bundles = {(key[0], self._first[key]): None for key in keys if key in self._first}
        return [(*self._bundles[bundle][:2], bundle[0]) for bundle in bundles]

    async def free(self, keys: list[Key]) -> None:
        for keeper, number in keys:
            if self._last.get(keeper, -1) < number:
                self._freed_early.add((keeper, number))
            else:
                self._drop(keeper, number)

    async def forget(self, keeper: str, below: int) -> None:
        """It has ended: what it put under numbers below this is lost, also where Ray has it for a while."""
        for name, number in [key for key in self._first if key[0] == keeper and key[1] < below]:
            self._drop(name, number)
        self._freed_early = {key for key in self._freed_early if key[0] != keeper or key[1] >= below}
        async with self._came:
            self._gone[keeper] = max(below, self._gone.get(keeper, 0))
            self._last[keeper] = max(below - 1, self._last.get(keeper, -1))
            self._came.notify_all()

    async def told(self) -> tuple[str, dict[str, int]]:
        """Which life of the shelf this is: another one knows nothing of what was put before. And the last number of
        each keeper."""
        return self._life, dict(self._last)

    async def lost(self, last: dict[str, int]) -> None:
        """An earlier life knew of the refs of these keepers up to these numbers: they are not on their way."""
        for keeper, number in last.items():
            await self.forget(keeper, min([number + 1, *(own for name, own in self._first if name == keeper)]))

    async def count(self) -> int:
        """Refs that were put and not freed."""
        return len(self._first)

    async def _on_their_way(self, keys: list[Key]) -> None:
        """Until they are here, or should have been."""

        def are_here() -> bool:
            return all(self._last.get(keeper, -1) >= number for keeper, number in keys)

        async with self._came:
            if not are_here():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_ON_ITS_WAY_S):
                        await self._came.wait_for(are_here)
                for keeper, number in keys:  # messages of one come in order: nobody waits for these again
                    self._last[keeper] = max(number, self._last.get(keeper, -1))

    def _drop(self, keeper: str, number: int) -> None:
        """The object goes with its last ref."""
        first = self._first.pop((keeper, number), None)
        if first is None:
            return
        left = self._bundles[keeper, first][2]
        left.discard(number)
        if not left:
            del self._bundles[keeper, first]
