"""An inference server as a worker: launched beside it, or attached to."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from headrace.config.errors import ConfigError
from headrace.engines.protocol import EngineError, SwapMode, SwapReport
from headrace.engines.remote_types import ENGINE_TYPES
from headrace.engines.servers.dialect import Dialect, Expected
from headrace.engines.servers.engine import Limits, ServerEngine
from headrace.engines.servers.http import ServerHttp, ServerRefused
from headrace.engines.servers.kinds import KINDS
from headrace.engines.servers.launch import CHECKED, ServerLaunch
from headrace.engines.servers.weight_sender import WeightSender
from headrace.roles.workers.engine_host import EngineHost
from headrace.roles.workers.launched_server import LaunchedServer
from headrace.runtime.ports import free_port
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host
from headrace.weights.addresses import own_address
from headrace.weights.newest_offer import Offered
from headrace.weights.plane import WeightError, WeightOffer, WeightReceiver
from headrace.weights.seen import CPU
from headrace.weights.version import Version

_LOOK_S = 0.25
_ATTACHED_S = 60.0
"""In which a server that runs already has to answer."""
_NO_SUCH = (404, 405)
_SWAP_S = 60.0
"""That whoever wants a version to be held waits while a newer one is taken."""
_PORTS = 3
"""That are tried: somebody else may take one that was free."""


class _PortTaken(EngineError):
    """Somebody else listens there."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    kind: str
    """As `vllm`: see `KINDS`."""
    limits: Limits
    expected: Expected
    launch: ServerLaunch | None
    """None: it is attached to at `url`."""
    log: str
    """A file, which what it prints is added to."""
    url: str = ""
    token: str | None = field(default=None, repr=False)
    admin_token: str | None = field(default=None, repr=False)
    """Of the kind's `admin_routes`; None: as `token`."""
    returns: bool = False
    """Whether somebody brings it back once it has died."""
    weights_from: str = ""
    """An address on the network over which weights are sent to it by gloo, from the worker's own address there; empty:
    it reads where they are published."""


class ServerEngineWorker(EngineHost[ServerEngine]):
    """The only client of a server that it launches."""

    kind: ClassVar[str] = "engine"
    types: ClassVar[WireTypes] = ENGINE_TYPES.with_types(
        WireTypes({"server_spec": ServerSpec, "server_launch": ServerLaunch, "limits": Limits, "expected": Expected})
    )

    _device = CPU
    """Its weights come to it in the host's memory, wherever it keeps them."""

    def __init__(self, spec: ServerSpec, host: Host) -> None:
        super().__init__(host, returns=spec.returns)
        self._spec = spec
        self._server: LaunchedServer | None = None
        self._port = 0
        """That it is to listen at."""
        self._http: ServerHttp | None = None
        self._sender: WeightSender | None = None
        self._watching: asyncio.Task[None] | None = None
        self._has_swapped = False

    async def start(self, is_behind: bool = False) -> None:
        """See `EngineHost.start`. Raises ConfigError, EngineError."""
        await self._may_send()
        launch, tries = self._spec.launch, 1
        while True:
            try:
                dialect = await self._up()
                break
            except _PortTaken as taken:
                await self._end()
                if tries == _PORTS:
                    raise EngineError(str(taken)) from taken
                tries += 1
        if self._server is not None:
            self._server.note()
            self._require_loopback(self._server)
        await dialect.meet(self._spec.expected)
        limits = self._spec.limits
        self._engine = ServerEngine(
            dialect,
            replace(limits, slots=given_at_once(limits.slots, dialect.together)),
            self._services,
            holds=launch is not None and not is_behind,
            died=lambda: None if self._server is None else self._server.end_noted(),
        )
        await super().start(is_behind)
        if self._server is not None:
            self._watching = self._services.spawn(self._watch(self._server), "the server's end")

    async def update(self, offer: WeightOffer, mode: SwapMode) -> SwapReport | None:
        """See `EngineHost.update`. The first one has a launched server open what weights come by: one that listens
        beyond loopback from then on is ended. Raises ConfigError of that too."""
        report = await super().update(offer, mode)
        if report is not None and self._server is not None and not self._has_swapped:
            self._has_swapped = True
            try:
                self._require_loopback(self._server)
            except ConfigError as error:
                self._engine.fail(error)
                self._news.set()
                raise
        return report

    async def pin(self, client: str, version: Version) -> int:
        """See `EngineHost.pin`. While it takes a version it holds none, and that is over soon, as a rule."""
        await self._engine.settled(_SWAP_S)
        return await super().pin(client, version)

    async def _up(self) -> Dialect:
        """The server, launched if it is ours. Raises ConfigError, EngineError."""
        launch, clock, kind = self._spec.launch, self._services.clock, KINDS[self._spec.kind]
        url = self._spec.url
        if launch is not None:
            self._port = free_port()
            url = f"http://127.0.0.1:{self._port}"
            self._server = LaunchedServer(clock, Path(self._spec.log), kind.title)
            command = kind.command(launch, self._port)
            await self._server.start(command, lambda folder: kind.environment(launch, os.environ, folder))
        token, admin = self._spec.token, self._spec.admin_token
        self._http = ServerHttp(url, clock, token, {} if admin is None else dict.fromkeys(kind.admin_routes, admin))
        await self._http.open()
        dialect = kind.dialect(self._http, self._spec.limits.vocab_size, self._services, self._sender)
        await self._until_up(dialect)
        return dialect

    async def _may_send(self) -> None:
        """Have what sends weights, if they are sent. Raises ConfigError."""
        if not self._spec.weights_from:
            return
        log = Path(self._spec.log)
        log = log.with_name(f"{log.stem}-sender.log")
        try:
            self._sender = WeightSender(own_address(self._spec.weights_from), self._services.clock, log)
            await self._sender.open()
        except (OSError, WeightError) as error:
            raise ConfigError(
                f"weights cannot be sent over the network of {self._spec.weights_from}: {error}; set weights.host to "
                "an address of the trainer's machine that the server reaches"
            ) from error

    async def stop(self) -> Any:
        """See `EngineHost.stop`."""
        status = await super().stop()
        await self._end()
        return status

    async def close(self) -> None:
        """Its end."""
        if hasattr(self, "_engine"):
            await self._engine.stop()
        await self._end()

    async def revive(self, offer: WeightOffer | None) -> None:
        raise EngineError("a server comes back by a worker that is made anew")

    async def _until_up(self, dialect: Dialect) -> None:
        """Raises ConfigError where the server refuses how it is launched, EngineError where it ends or is too late."""
        clock, launch = self._services.clock, self._spec.launch
        end = clock.now() + (_ATTACHED_S if launch is None else launch.start_s)
        while not (self._is_there() and await dialect.is_up()):
            if self._server is not None and self._server.has_ended():
                self._require_no_refusal(self._server)
                taken = self._server.last_words(lambda line: "address already in use" in line.lower())
                raise (_PortTaken if taken else EngineError)(
                    f"the server {await self._server.ended()} before it was up: {self._server.last_words()} "
                    f"(all of it is in {self._spec.log})"
                )
            if launch is None:
                self._require_may_come(late=clock.now() >= end)
            elif clock.now() >= end:
                raise EngineError(f"the server was not up in time; what it printed is in {self._spec.log}")
            await clock.sleep(_LOOK_S)

    def _require_may_come(self, *, late: bool) -> None:
        """Raises ConfigError where nothing that may yet come answers at its URL, EngineError where it is too late."""
        assert self._http is not None
        url, fault = self._spec.url, self._http.fault
        if isinstance(fault, ServerRefused) and fault.status in _NO_SUCH:
            raise ConfigError(
                f"the server at {url} is no {self._spec.kind}, or one that is too old, or engine.url is not where it "
                f"listens: {fault}"
            )
        if late:
            raise EngineError(
                f"the server at {url} was not up within {_ATTACHED_S:g} s: {fault}; start it, or correct engine.url"
            )

    def _is_there(self) -> bool:
        """Whether it is our server that listens, where it is launched: somebody else may have taken its port, and serve
        there."""
        return self._server is None or self._server.listens(self._port)

    def _require_no_refusal(self, server: LaunchedServer) -> None:
        """Raises ConfigError."""
        launch, refusal = self._spec.launch, KINDS[self._spec.kind].refusal
        assert launch is not None
        words = server.last_words(lambda line: refusal(launch, line) is not None)
        if words and (told := refusal(launch, words)) is not None:
            raise ConfigError(told)

    def _require_loopback(self, server: LaunchedServer) -> None:
        """Raises ConfigError where it listens beyond: nothing of it has a key."""
        if beyond := server.beyond_loopback():
            raise ConfigError(
                f"the server that was launched listens at {', '.join(beyond)}, which other machines may reach, without "
                f"a key; change what engine.args has it open, or launch it yourself, behind a wall of your own, and "
                f"give its engine.url (what it printed is in {self._spec.log})"
            )

    async def _watch(self, server: LaunchedServer) -> None:
        how = await server.ended()
        self._engine.fail(EngineError(f"the server {how}: {server.last_words()}"))
        self._news.set()

    async def _end(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        server, self._server = self._server, None
        if server is not None:
            await server.stop(kindly=not hasattr(self, "_engine") or self._engine.failure is None)
        http, self._http = self._http, None
        if http is not None:
            await http.close()
        if self._sender is not None:
            await self._sender.close()

    def _receiver(self, offer: WeightOffer) -> WeightReceiver:
        return Offered(offer)


def given_at_once(slots: int, together: int | None) -> int:
    """Requests of the `slots` that the run would give it which a server has that computes so many `together`, beside
    the swap check; where it has few places, half of them."""
    if together is None:
        return slots
    return min(slots, max(1, together - min(CHECKED, together // 2)))
