"""A version that an engine that is a worker holds for one client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from headrace.engines.protocol import EngineError
from headrace.engines.remote_types import CallEngine
from headrace.runtime.protocol import Services
from headrace.weights.version import Version


class RemotePin:
    """See `PinnedVersion`."""

    def __init__(
        self, call: CallEngine, services: Services, client: str, version: Version, changed: Callable[[], None]
    ) -> None:
        """`call`: a method of the engine's worker. `client`: who asks. `changed` is called when the pin is lost."""
        self.version = version
        self.is_lost = False
        """The engine does not hold the version."""
        self._call = call
        self._services = services
        self._client = client
        self._changed = changed
        self._released = False
        self._holding: asyncio.Task[int] = services.spawn(self._hold(), "a pin")

    def release(self) -> None:
        """See `PinnedVersion.release`."""
        if not self._released:
            self._released = True
            self._services.spawn(self._let_go(), "the end of a pin")

    async def _hold(self) -> int:
        try:
            number: int = await self._call("pin", self._client, self.version, what="a version to be held")
            return number
        except EngineError:
            self.is_lost = True
            self._changed()
            return -1

    async def _let_go(self) -> None:
        number = await self._holding
        if number >= 0:
            with suppress(EngineError):
                await self._call("release", self._client, number, what="a version to be let go")
