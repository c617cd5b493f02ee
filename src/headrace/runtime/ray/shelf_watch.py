"""Whether the shelf is there, and the one that was."""

from __future__ import annotations

import asyncio
from typing import Any

from ray.exceptions import RayError

from headrace.runtime.ground import GroundLost
from headrace.runtime.protocol import Clock

_ANSWER_S = 5.0
_BACK_S = 60.0
"""In which Ray makes another one."""


class ShelfWatch:
    def __init__(self, shelf: Any, clock: Clock) -> None:
        """`shelf`: Ray's handle of a `Shelf`, which Ray makes anew where it ends."""
        self._shelf = shelf
        self._clock = clock
        self._life: str | None = None
        self._last: dict[str, int] = {}
        """Of each keeper the number that it was known to have put."""
        self._answered = clock.now()

    async def is_new(self) -> bool:
        """Whether another one is there since the last look, which knows of nothing; it is told what was lost. Raises
        GroundLost where none comes."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                life, last = await self._shelf.told.remote()
                is_new = self._life not in (None, life)
                if is_new:
                    await self._shelf.lost.remote(self._last)
        except (RayError, TimeoutError) as error:
            silent = self._clock.now() - self._answered
            if silent > _BACK_S:
                raise GroundLost(
                    f"the actor that knows where columns are (shelf) has not answered for {silent:.0f} s: "
                    f"{' '.join(str(error).split()) or 'it hangs'}; --resume the run"
                ) from error
            return False
        self._life, self._last, self._answered = life, dict(last), self._clock.now()
        return is_new
