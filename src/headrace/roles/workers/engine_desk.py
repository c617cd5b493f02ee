"""Engines that are objects in the controller's process, for workers in others: each has a desk where it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import ClassVar

from headrace.engines.member import Member
from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import EngineError, GenerateRequest, RequestError
from headrace.engines.remote_types import ENGINE_TYPES, STATUS_BEAT_S, EngineStatus, Output, RequestFailed
from headrace.roles.workers.engine import _Client
from headrace.runtime.protocol import Services, WaitTimeout
from headrace.runtime.signal import Signal
from headrace.runtime.wire_types import WireTypes
from headrace.runtime.workers import Host


@dataclass(frozen=True, slots=True)
class DeskSpec:
    place: int
    """Of the engine among those that have desks."""


class EngineDesk:
    """Asked as `EngineWorker` is, of tokens alone: start, stop and weights are its pool's business. It stands for the
    engine's place in the pool, whichever engine fills it."""

    kind: ClassVar[str] = "engine_desk"
    types: ClassVar[WireTypes] = ENGINE_TYPES.with_types(WireTypes({"desk_spec": DeskSpec}))
    members: ClassVar[Sequence[tuple[Member, Signal]]] = ()
    """The engines, and what is notified when they change: given by the process that has them (`desks_of`)."""

    def __init__(self, spec: DeskSpec, host: Host) -> None:
        self._services: Services = host
        self._member, self._changed = self.members[spec.place]
        self._clients: dict[str, _Client] = {}
        self._news = asyncio.Event()
        self._changed.listen(self._news.set)

    async def status(self) -> EngineStatus:
        """Now."""
        return self._state()

    async def statuses(self) -> AsyncGenerator[EngineStatus, None]:
        """Whenever it has changed; of totals alone, once in a while."""
        clock, last = self._services.clock, None
        while True:
            state, now = self._state(), clock.now()
            changed = last is None or (state.version, state.failure) != last[0]
            if last is None or changed or now - last[1] >= STATUS_BEAT_S:
                last = (state.version, state.failure), now
                yield state
            self._news.clear()
            try:
                await clock.wait_for(self._news.wait(), STATUS_BEAT_S, "news")
            except WaitTimeout:
                continue

    async def outputs(self, client: str) -> AsyncGenerator[list[Output], None]:
        """See `EngineWorker.outputs`."""
        mine = self._clients[client] = _Client()
        try:
            yield []
            while True:
                yield await mine.take(self._services)
        finally:
            if self._clients.get(client) is mine:
                del self._clients[client]
            mine.end()

    async def submit(self, client: str, requests: Sequence[GenerateRequest]) -> None:
        """See `EngineWorker.submit`. Raises EngineError."""
        mine = self._clients.get(client)
        if mine is None:
            raise EngineError(f"{client} has no stream of outputs open")
        for request in requests:
            name = f"request {request.request_id}"
            mine.asked[request.request_id] = self._services.spawn(self._serve(mine, request), name)

    async def abort(self, client: str, request_ids: Sequence[str]) -> None:
        """See `Engine.abort`."""
        mine = self._clients.get(client)
        if mine is not None:
            self._member.engine.abort([each for each in request_ids if each in mine.asked])

    def _state(self) -> EngineStatus:
        member, engine = self._member, self._member.engine
        why = engine.failure
        if why is None and not member.view.serves:
            why = member.failure or EngineError("it does not serve")
        failure = None if why is None else str(why) or type(why).__name__
        gone = member.state is EngineState.GONE or (engine.failure is not None and member.revive is None)
        slots = engine.slots if member.view.serves else 0  # known once it has started
        return EngineStatus(engine.version, slots, engine.stats(), failure, is_gone=gone)

    async def _serve(self, client: _Client, request: GenerateRequest) -> None:
        name = request.request_id
        try:
            async with aclosing(self._member.engine.generate(request)) as chunks:
                async for chunk in chunks:
                    client.put((name, chunk))
        except RequestError as error:
            client.put((name, RequestFailed(str(error), is_refused=True)))
        except EngineError as error:
            client.put((name, RequestFailed(str(error))))
            self._news.set()
        finally:
            client.asked.pop(name, None)


def desks_of(members: Sequence[tuple[Member, Signal]]) -> type[EngineDesk]:
    """The class of desks of these engines, to be started in this process with a `DeskSpec` each."""
    return type("EngineDesk", (EngineDesk,), {"members": tuple(members)})
