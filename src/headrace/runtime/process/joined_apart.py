"""Ranks of a launcher on other machines than the first one's.

The first listens at an address that it is told, with a token that it writes into the run's folder, readable by its
user alone; who has read that there connects, and is spoken to over that one connection. It is a worker's life: when it
ends, both sides know.
"""

from __future__ import annotations

import asyncio
import json
import platform
import secrets
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn

from headrace.config import ConfigError
from headrace.runtime.clock import SystemClock
from headrace.runtime.node_check import require_same, versions
from headrace.runtime.process.boot import PACKAGE, WorkerBoot, class_at
from headrace.runtime.process.handshake import NotOurs, come_in, let_in
from headrace.runtime.process.served import ServedWorker
from headrace.runtime.process.site import Site
from headrace.runtime.progress import Stuck
from headrace.runtime.protocol import WaitTimeout

_LOOK_S = 0.05
_REACH_S = 10.0
_IDLE_S, _BETWEEN_S, _TIMES = 5, 5, 3
"""A connection on which nothing comes is tried after so long, and is lost after so many that are not answered: 20 s."""
_MOST_BOOT = 1 << 20


@dataclass(frozen=True, slots=True)
class Arrived:
    """A rank that has connected."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    host: str
    """The name of its machine."""
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Gate:
    """Where the first rank is found."""

    host: str
    port: int
    token: str


class GateKeeper:
    """The first rank's side. It listens from `open` to `close`."""

    def __init__(self, host: str) -> None:
        """`host`: an address of this machine."""
        self._host = host
        self._token = secrets.token_hex(32)
        self._arrived: dict[int, Arrived] = {}
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> Gate:
        """The same one each time. Raises ConfigError where the address is none of this machine."""
        async with self._opening:
            if self._server is None:
                try:
                    self._server = await asyncio.start_server(self._came, self._host, 0)
                except OSError as error:
                    raise ConfigError(
                        f"runtime.host is {self._host}, and the first rank cannot listen there: {error.strerror}; set "
                        "it to an address of the machine of torchrun's first node that the others reach"
                    ) from error
        return Gate(self._host, int(self._server.sockets[0].getsockname()[1]), self._token)

    async def arrived(self, rank: int, seconds: float) -> Arrived:
        """The rank, once it is here. Raises WaitTimeout; NodeUnfit for one of other versions."""
        clock, end = SystemClock(), time.monotonic() + seconds
        while (found := self._arrived.pop(rank, None)) is None:
            if time.monotonic() > end:
                raise WaitTimeout(f"rank {rank} of the launcher to reach {self._host}", seconds)
            await clock.sleep(_LOOK_S)
        require_same(f"of rank {rank}, {found.host},", found.versions, versions())
        return found

    def close(self) -> None:
        """Nobody is let in any more; who is stays."""
        if self._server is not None and not self._server.get_loop().is_closed():
            self._server.close()

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            told = json.loads(await let_in(reader, writer, bytes.fromhex(self._token)))
        except NotOurs:
            writer.close()
            return
        keep_alive(writer)
        before = self._arrived.pop(told["rank"], None)
        if before is not None:
            before.writer.close()
        self._arrived[told["rank"]] = Arrived(reader, writer, told["host"], told["versions"])


class JoinedApart:
    """See `Begun`, `Connected`."""

    def __init__(self, arrived: Arrived) -> None:
        self.streams = arrived.reader, arrived.writer
        self._host = arrived.host
        self._clock = SystemClock()

    @classmethod
    async def begin(cls, keeper: GateKeeper, boot: WorkerBoot, seconds: float) -> JoinedApart:
        """Raises WaitTimeout, NodeUnfit."""
        arrived = await keeper.arrived(boot.rank, seconds)
        text = boot.text().encode()
        arrived.writer.write(len(text).to_bytes(4, "little") + text)
        return cls(arrived)

    async def ended(self) -> str:
        """See `Begun.ended`."""
        reader, writer = self.streams
        while not (reader.at_eof() or reader.exception() or writer.is_closing()):
            await self._clock.sleep(_LOOK_S)
        why = "" if reader.exception() is None else f" ({reader.exception()})"
        return f"its connection from {self._host} ended{why}: its process has, or its machine is lost"

    def kill(self) -> None:
        """See `Begun.kill`: it ends itself."""
        self.streams[1].transport.abort()

    async def clear(self) -> None:
        """See `Begun.clear`: what is left is on its own machine, and removed there."""


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """So that the loss of the other's machine, which says nothing, is known."""
    own: socket.socket = writer.get_extra_info("socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _IDLE_S), ("TCP_KEEPINTVL", _BETWEEN_S), ("TCP_KEEPCNT", _TIMES)):
        if (option := getattr(socket, name, None)) is not None:
            own.setsockopt(socket.IPPROTO_TCP, option, value)
    if (option := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        own.setsockopt(socket.IPPROTO_TCP, option, (_IDLE_S + _BETWEEN_S * _TIMES) * 1000)


async def served_apart(
    rank: int,
    gate: Gate,
    on_stuck: Callable[[Stuck], None],
    begun: Callable[[str], None],
    leave: Callable[[int], NoReturn],
) -> None:
    """Be this rank for whoever keeps `gate`, and `leave` with an exit code, once it is let go, or the connection has
    ended, or it is refused, which is said; return where nobody is there who keeps it. `begun`: told the worker's
    name."""
    try:
        async with asyncio.timeout(_REACH_S):
            reader, writer = await asyncio.open_connection(gate.host, gate.port)
        told = {"rank": rank, "host": platform.node(), "versions": dict(versions())}
        await come_in(reader, writer, bytes.fromhex(gate.token), json.dumps(told).encode())
    except (OSError, TimeoutError):
        return
    keep_alive(writer)
    try:
        boot = await _told_boot(reader)
    except (asyncio.IncompleteReadError, OSError) as error:
        sys.stderr.write(f"rank {rank} is not taken by the first rank at {gate.host}, whose output says why: {error}\n")
        leave(1)
    begun(boot.name)
    site = Site(boot.name)
    try:
        boot = replace(boot, folder=str(site.folder))
        was_let_go = await ServedWorker(class_at(boot.kind, (PACKAGE,)), boot, on_stuck).serve_one(reader, writer)
    finally:
        site.close()
    if not was_let_go:
        sys.stderr.write(f"{boot.name}: the connection to the first rank has ended\n")
    leave(0 if was_let_go else 1)  # from within the loop, whose end may wait for a lane that waits for other ranks


async def _told_boot(reader: asyncio.StreamReader) -> WorkerBoot:
    """Raises IncompleteReadError, OSError, NotOurs."""
    length = int.from_bytes(await reader.readexactly(4), "little")
    if length > _MOST_BOOT:
        raise NotOurs(f"a worker's beginning of {length} bytes is longer than {_MOST_BOOT}")
    return WorkerBoot.parse((await reader.readexactly(length)).decode())


class Launcher:
    """Whether the launcher of the first rank is there: some launchers leave the others waiting once it has ended."""

    def __init__(self, host: str, port: int, *, lost_s: float = 20.0) -> None:
        """Where it listens, by the environment. `lost_s`: nobody answers for so long, who did once."""
        self._at = host, port
        self._lost_s = lost_s
        self._answered: float | None = None

    def is_lost(self) -> bool:
        """Asks. Blocking, for a second at most."""
        with suppress(OSError):
            socket.create_connection(self._at, timeout=1.0).close()
            self._answered = time.monotonic()
        return self._answered is not None and time.monotonic() - self._answered > self._lost_s
