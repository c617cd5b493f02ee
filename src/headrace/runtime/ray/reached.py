"""A worker in another actor, seen from a worker."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import ray

from headrace.runtime.protocol import Services
from headrace.runtime.ray.asked_actor import AskedActor
from headrace.runtime.ray.asker import Asker
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import DEADLINE_S, Handle, WorkerLost

_LANE = "ray"


class ReachedActor:
    """A `Peer`."""

    here = None

    def __init__(self, handle: Handle, types: WireTypes, services: Services, asker: Asker) -> None:
        """`asker`: who asks."""
        self._handle = handle
        self._types = types
        self._services = services
        self._asker = asker
        self._found: AskedActor | None = None
        self._finding = asyncio.Lock()

    async def call(self, method: str, *args: Any, what: str, seconds: float | None = None) -> Any:
        """See `Peer.call`."""
        actor = await self._actor()
        try:
            return await actor.call(method, args, what, _seconds(seconds))
        except WorkerLost:
            self._found = None  # one that is made anew has another actor
            raise

    async def stream(
        self, method: str, *args: Any, what: str, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """See `Peer.stream`."""
        actor = await self._actor()
        try:
            async with aclosing(actor.stream(method, args, what, _seconds(seconds))) as items:
                async for item in items:
                    yield item
        except WorkerLost:
            self._found = None
            raise

    async def _actor(self) -> AskedActor:
        async with self._finding:
            if self._found is None:
                handle = self._handle
                namespace, _, name = handle.address.partition(" ")
                try:
                    actor = await self._services.compute(_LANE, lambda: ray.get_actor(name, namespace=namespace))
                except ValueError as error:
                    raise WorkerLost(handle.rank, f"there is no such actor: {error}", worker=handle.worker) from error
                self._found = AskedActor(
                    actor,
                    lambda: self._types,
                    self._services,
                    handle.worker,
                    handle.rank,
                    f"{self._asker.prefix}{secrets.token_hex(8)}",
                )
            return self._found


def _seconds(seconds: float | None) -> float:
    return DEADLINE_S if seconds is None else seconds
