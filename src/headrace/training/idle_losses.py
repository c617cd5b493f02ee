"""Losses of ranks that nobody asks anything: no call raises them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NoReturn

from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.signal import Signal
from headrace.runtime.workers import WorkerLost

_ASKED_S = 1.0
"""After which one that is lost is looked at: whoever was asking it has been told by then."""


class IdleLosses:
    def __init__(self, changed: Signal, clock: Clock, seconds: float, lost: Callable[[], Mapping[int, WorkerLost]]):
        """`lost`: ranks that take part, and are lost; `changed` of them. `seconds`: after which they are looked at
        though nothing has changed."""
        self._changed = changed
        self._clock = clock
        self._seconds = seconds
        self._lost = lost
        self._asked: Counter[int] = Counter()

    @contextmanager
    def asking(self, ranks: Iterable[int]) -> Iterator[None]:
        """Meanwhile whoever asks these is told of their losses."""
        asked = tuple(ranks)
        self._asked.update(asked)
        try:
            yield
        finally:
            self._asked.subtract(asked)

    async def raised(self) -> NoReturn:
        """Raises WorkerLost once a rank is lost that nobody asks anything."""
        while True:
            if not self._lost():
                with suppress(WaitTimeout):
                    await self._changed.wait(self._clock, self._seconds, "the loss of a rank")
                continue
            await self._clock.sleep(_ASKED_S)
            for rank, lost in self._lost().items():
                if not self._asked[rank]:
                    raise lost
