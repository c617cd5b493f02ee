"""Has each new version leave for those who receive it, while the trainer goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from headrace.observe.failure import words_of
from headrace.roles.context import RoleContext
from headrace.runtime.signal import Signal
from headrace.store import StoreError
from headrace.weights.plane import Departure
from headrace.weights.version import Version

logger = logging.getLogger(__name__)

_LANE = "weights out"


class Source(Protocol):
    """Where versions come from; see `TrainerGroup`."""

    async def snapshot(self, version: Version) -> None: ...

    async def send(self) -> Departure: ...

    async def newest(self) -> Version | None: ...


class WeightDistributor:
    """One journey at a time: the next version is copied once the one before has arrived."""

    def __init__(self, context: RoleContext, source: Source, published: Signal, failed: Callable[[], None]) -> None:
        """`published` is notified of each version that can be received. `failed` is called where one cannot be sent;
        why, `settled` raises."""
        self._context = context
        self._source = source
        self._published = published
        self._failed = failed
        self._journey: asyncio.Task[None] | None = None

    async def publish(self, version: Version, ask: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        """Returns once there is a copy of the weights. `ask` waits for the trainer. Raises WeightError and WaitTimeout,
        also of the version before."""
        await self.settled()
        await ask(self._source.snapshot(version))
        self._journey = self._context.runtime.spawn(self._send(version), f"the journey of {version}")

    async def publish_again(self, version: Version, ask: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        """As `publish`, behind a loss: of a version that may have left from there before, and does so once."""
        await self.settled()
        if await ask(self._source.newest()) != version:
            await self.publish(version, ask)
        else:
            self._published.notify()  # the loss may have come before it was told

    async def settled(self) -> None:
        """Until what was published can be received. Raises WeightError, WaitTimeout."""
        if self._journey is not None:
            await asyncio.shield(self._journey)

    async def forget(self) -> None:
        """The version that is on its way was taken back: returns once it has arrived, or could not. Raises StoreError
        where its arrival could not be recorded."""
        journey, self._journey = self._journey, None
        if journey is not None:
            (error,) = await asyncio.gather(journey, return_exceptions=True)
            if isinstance(error, StoreError):
                raise error
            if error is not None:
                logger.info("%s, which was taken back, did not arrive: %s", journey.get_name(), words_of(error))

    async def _send(self, version: Version) -> None:
        try:
            left = await self._context.computed(_LANE, "weights on their way", self._source.send())
        except Exception:
            self._failed()
            raise
        self._published.notify()
        if left.transport != "memory":
            self._context.report(
                "weights_sent",
                {
                    "version": str(version),
                    "transport": left.transport,
                    "bytes": left.size,
                    "seconds": round(left.seconds, 6),
                    "bytes_per_s": round(left.size / left.seconds) if left.seconds else None,
                    **_of_parts(left),
                },
            )


def _of_parts(left: Departure) -> dict[str, float]:
    """Of those that ranks on other machines had: their bytes, and the share of them that was sent."""
    if not left.of_others:
        return {}
    return {"parts_bytes": left.of_others, "parts_share": round(left.sent / left.of_others, 4)}
