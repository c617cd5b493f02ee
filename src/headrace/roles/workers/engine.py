"""An embedded engine as a worker: `engines/remote.py` is how it is spoken to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

import torch

from headrace.config.model import EngineConfig, PolicyEngineConfig
from headrace.engines.embedded.cache_plan import CachePlan
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.protocol import (
    EngineError,
    GenerateRequest,
    PinnedVersion,
    RequestError,
    SwapMode,
    SwapReport,
)
from headrace.engines.remote_types import (
    ENGINE_TYPES,
    OUTPUTS_BEAT_S,
    STATUS_BEAT_S,
    STATUS_PAUSE_S,
    EngineStatus,
    Output,
    RequestFailed,
)
from headrace.models.loading import load_causal_lm
from headrace.runtime.protocol import Services, WaitTimeout
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host
from headrace.weights.plane import WeightOffer, WeightReceiver
from headrace.weights.receiving import HeldTo, receiver_at
from headrace.weights.version import Version


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """From which an engine builds itself."""

    weights: str
    """Folder of the model, in Hugging Face format."""
    dtype: str
    """Of its weights, as `bfloat16`."""
    device: str
    config: EngineConfig
    cache: CachePlan | None = None
    """Of this size; unless given, as the engine finds room when it starts."""
    returns: bool = False
    """Whether somebody brings it back once it has died."""


class EngineWorker:
    """What is asked of it by a client ends when the client's stream of outputs does."""

    kind: ClassVar[str] = "engine"
    types: ClassVar[WireTypes] = ENGINE_TYPES.with_types(
        WireTypes(
            {
                "cache_plan": CachePlan,
                "engine_config": EngineConfig,
                "engine_spec": EngineSpec,
                "policy_engine_config": PolicyEngineConfig,
            }
        )
    )

    def __init__(self, spec: EngineSpec, host: Host) -> None:
        """Loads the model. Raises ConfigError."""
        if host.threads is not None:
            torch.set_num_threads(host.threads)
        self._services: Services = host
        self._returns = spec.returns
        self._engine = self._made(spec, host)
        self._clients: dict[str, _Client] = {}
        self._taken_out: EngineError | None = None
        """Though it lives."""
        self._pins: dict[tuple[str, int], PinnedVersion] = {}
        self._receivers: dict[tuple[str, str], WeightReceiver] = {}
        self._numbers = count()
        self._news = asyncio.Event()

    async def start(self) -> None:
        """See `Engine.start`."""
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

    async def update(self, offer: WeightOffer, mode: SwapMode) -> SwapReport | None:
        """See `Engine.update`. Raises WeightError, EngineError."""
        report = await self._engine.update(self._receiver(offer), mode)
        self._news.set()
        return report

    async def revive(self, offer: WeightOffer) -> None:
        """In the place of an engine that died: another, with the newest whole version, which serves. Raises
        WeightError, EngineError."""
        dead = self._engine
        await dead.stop()
        self._engine = await dead.successor(self._receiver(offer))
        self._taken_out = None
        self._news.set()

    async def pin(self, client: str, version: Version) -> int:
        """Hold `version` until it is released by the number that is returned, or the client's stream ends. Raises
        EngineError if the engine has another."""
        if self._engine.version != version:
            raise EngineError(f"the engine has {self._engine.version}, and {version} was to be held")
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
    def engine(self) -> EmbeddedEngine:
        """For whoever is in this process: see `EngineHere`."""
        return self._engine

    def state(self) -> EngineStatus:
        """Now, for whoever is in this process."""
        engine = self._engine
        status = EngineStatus(engine.version, engine.slots, engine.stats())
        failure = engine.failure or self._taken_out
        if failure is None:
            return status
        kind = type(failure).__name__
        return replace(status, failure=str(failure) or kind, failed_by=kind, is_gone=not self._returns)

    def _made(self, spec: EngineSpec, host: Host) -> EmbeddedEngine:
        model = load_causal_lm(spec.weights, dtype=getattr(torch, spec.dtype), device=spec.device)
        return self._on(model, spec, host)

    def _on(self, model: Any, spec: EngineSpec, host: Host) -> EmbeddedEngine:
        return EmbeddedEngine(model, config=spec.config, runtime=host, lane=self.kind, cache=spec.cache)

    def _receiver(self, offer: WeightOffer) -> WeightReceiver:
        """What it has mapped stays mapped; but a trainer has another address in each life, and the slots of the one
        before are let go."""
        where = offer.transport, offer.address
        if where not in self._receivers:
            self._receivers = {where: receiver_at(*where)}
        return HeldTo(offer, self._receivers[where])

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
            client.put((name, RequestFailed(str(error))))
            self._news.set()
        finally:
            client.asked.pop(name, None)


class JudgeEngineWorker(EngineWorker):
    """Of a judge that is a model of its own, whose weights stay as they were loaded."""

    kind: ClassVar[str] = "judge"

    async def revive(self, offer: WeightOffer | None) -> None:
        """In the place of an engine that died: another on the same weights, which serves. Raises EngineError,
        ConfigError."""
        await self._engine.stop()
        other = self._anew()
        await other.start()
        self._engine, self._taken_out = other, None
        self._news.set()

    def _on(self, model: Any, spec: EngineSpec, host: Host) -> EmbeddedEngine:
        def anew() -> EmbeddedEngine:
            return EmbeddedEngine(model, config=spec.config, runtime=host, lane=self.kind, cache=spec.cache)

        self._anew = anew
        return anew()


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
