"""An engine as a worker, whatever it computes with: `engines/remote.py` is how it is spoken to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from typing import Generic, Protocol, TypeVar

from headrace.engines.protocol import (
    Engine,
    EngineError,
    GenerateRequest,
    PinnedVersion,
    RequestError,
    SwapMode,
    SwapReport,
    Tag,
    UncertainVersions,
)
from headrace.engines.remote_types import (
    OUTPUTS_BEAT_S,
    STATUS_BEAT_S,
    STATUS_PAUSE_S,
    EngineStatus,
    Output,
    RequestFailed,
)
from headrace.runtime.protocol import Services, WaitTimeout
from headrace.weights.plane import WeightOffer, WeightReceiver
from headrace.weights.seen import Seen, seen_here
from headrace.weights.version import Version


class Mortal(Engine, Protocol):
    def kill(self, reason: str) -> None:
        """Die of `reason`, as of a fault of its own."""


E = TypeVar("E", bound=Mortal)


class EngineHost(Generic[E]):
    """What is asked of it by a client ends when the client's stream of outputs does."""

    _engine: E
    _device: str
    """Of its weights: see `Seen.device`."""

    def __init__(self, services: Services, *, returns: bool) -> None:
        """`_engine` and `_device` are to be set before anything is asked. `returns`: whether somebody brings it back
        once it died."""
        self._services = services
        self._returns = returns
        self._clients: dict[str, _Client] = {}
        self._taken_out: EngineError | None = None
        """Though it lives."""
        self._is_behind = False
        """What it holds is of no use until it is updated: newer weights are there."""
        self._pins: dict[tuple[str, int], PinnedVersion] = {}
        self._numbers = count()
        self._news = asyncio.Event()

    def _receiver(self, offer: WeightOffer) -> WeightReceiver:
        raise NotImplementedError

    async def start(self, is_behind: bool = False) -> None:
        """See `Engine.start`. `is_behind`: whoever asks engines hears that it rests, until it is updated."""
        self._is_behind = is_behind
        await self._engine.start()
        self._taken_out = None

    async def stop(self) -> EngineStatus:
        """See `Engine.stop`. Its last state. Other clients hear that it died, being taken out: their requests go on
        elsewhere, or here once it is back."""
        self._taken_out = EngineError("it was taken out")
        for client in self._clients.values():
            for name in list(client.asked):
                client.put((name, RequestFailed(f"request {name!r} was lost: {self._taken_out}")))
        self._news.set()
        await self._engine.stop()
        self._news.set()
        return self.state()

    async def close(self) -> None:
        """Its end."""
        await self._engine.stop()

    async def status(self) -> EngineStatus:
        """Now."""
        return self.state()

    async def statuses(self) -> AsyncGenerator[EngineStatus, None]:
        """Whenever it has changed; of totals alone, once in a while."""
        clock = self._services.clock
        last, told = None, 0.0
        while True:
            state, now = self.state(), clock.now()
            busy = replace(state, stats=replace(state.stats, idle_s=0.0))
            if busy != last or now - told >= STATUS_BEAT_S:
                last, told = busy, now
                yield state
            self._news.clear()
            try:
                await clock.wait_for(self._news.wait(), STATUS_PAUSE_S, "news")
            except WaitTimeout:
                continue

    async def outputs(self, client: str) -> AsyncGenerator[list[Output], None]:
        """Whatever the client's requests get, all of a decode step in one item; first, and at times, one that is
        empty."""
        mine = self._clients[client] = _Client()
        try:
            yield []
            while True:
                yield await mine.take(self._services)
        finally:
            if self._clients.get(client) is mine:
                del self._clients[client]
                self._release_all(client)
            mine.end()

    async def submit(self, client: str, requests: Sequence[GenerateRequest]) -> None:
        """Take the requests: what they get goes to the client's `outputs`, which are open. Raises EngineError."""
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
            self._engine.abort([each for each in request_ids if each in mine.asked])

    async def sees(self) -> Seen:
        """Where it is."""
        return seen_here(self._device)

    async def update(self, offer: WeightOffer, mode: SwapMode) -> SwapReport | None:
        """See `Engine.update`. Raises WeightError, EngineError."""
        try:
            report = await self._engine.update(self._receiver(offer), mode)
            self._is_behind = False
        finally:
            self._news.set()  # it may rest from now on
        return report

    async def sleep(self, tags: Sequence[Tag], sends_away: bool) -> EngineStatus:
        """See `Engine.sleep`; its state then. Raises EngineError."""
        await self._engine.sleep(tags, sends_away=sends_away)
        self._news.set()
        return self.state()

    async def wake(self, tags: Sequence[Tag]) -> EngineStatus:
        """See `Engine.wake`; its state then. Raises EngineError."""
        await self._engine.wake(tags)
        self._news.set()
        return self.state()

    async def pin(self, client: str, version: Version) -> int:
        """Hold `version` until it is released by the number that is returned, or the client's stream ends. Raises
        EngineError if the engine has another, or the stream has ended."""
        if self._engine.version != version:
            raise EngineError(f"the engine has {self._engine.version}, and {version} was to be held")
        if client not in self._clients:
            raise EngineError(f"{client} has no stream of outputs open: nobody would let go of {version}")
        number = next(self._numbers)
        self._pins[client, number] = self._engine.pin()
        return number

    async def release(self, client: str, number: int) -> None:
        """See `pin`."""
        pinned = self._pins.pop((client, number), None)
        if pinned is not None:
            pinned.release()

    async def kill(self, reason: str) -> None:
        """Let the engine die, and the worker live, as a fault of the engine's own does."""
        self._engine.kill(reason)

    @property
    def engine(self) -> E:
        """For whoever is in this process: see `EngineHere`."""
        return self._engine

    def state(self) -> EngineStatus:
        """Now, for whoever is in this process."""
        engine = self._engine
        rests = engine.rests or self._is_behind
        status = EngineStatus(engine.version, engine.slots, engine.stats(), rests=rests, asleep=engine.asleep)
        failure = engine.failure or self._taken_out
        if failure is None:
            return status
        kind = type(failure).__name__
        return replace(status, failure=str(failure) or kind, failed_by=kind, is_gone=not self._returns)

    def _release_all(self, client: str) -> None:
        for name, number in list(self._pins):
            if name == client:
                self._pins.pop((name, number)).release()

    async def _serve(self, client: _Client, request: GenerateRequest) -> None:
        """Hand on what one request gets. Several that get something at once have it in one item."""
        name = request.request_id
        try:
            async with aclosing(self._engine.generate(request)) as chunks:
                async for chunk in chunks:
                    client.put((name, chunk))
        except RequestError as error:
            client.put((name, RequestFailed(str(error), is_refused=True)))
        except EngineError as error:
            client.put((name, RequestFailed(str(error), is_uncertain=isinstance(error, UncertainVersions))))
            self._news.set()
        finally:
            client.asked.pop(name, None)


class _Client:
    """One stream of outputs, and what is asked for it."""

    def __init__(self) -> None:
        self.asked: dict[str, asyncio.Task[None]] = {}
        self._waiting: list[Output] = []
        self._news = asyncio.Event()

    def put(self, output: Output) -> None:
        self._waiting.append(output)
        self._news.set()

    async def take(self, services: Services) -> list[Output]:
        """What has come, as soon as something has."""
        if not self._waiting:
            self._news.clear()
            try:
                await services.clock.wait_for(self._news.wait(), OUTPUTS_BEAT_S, "outputs")
            except WaitTimeout:
                return []
        taken, self._waiting = self._waiting, []
        return taken

    def end(self) -> None:
        """Nobody reads any more."""
        for task in list(self.asked.values()):
            task.cancel()
