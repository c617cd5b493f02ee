"""What a worker that is apart is made of, and how its process is begun."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Placement


@dataclass(frozen=True, slots=True)
class Origin:
    """What a worker is made of, each time."""

    path: str
    """Of its class; see `Boot.kind`."""
    packages: tuple[str, ...]
    types: WireTypes
    spec: object
    closes: bool
    """Whether it has a method `close`."""
    log: Path | None


class Begun(Protocol):
    """A process that listens at the worker's socket."""

    async def ended(self) -> str:
        """Once it has: how."""

    def kill(self) -> None:
        """End it, if it has not ended."""

    async def clear(self) -> None:
        """Once it has ended: nothing of it is left."""


@runtime_checkable
class Connected(Begun, Protocol):
    """One of another machine, which has connected itself, and listens nowhere."""

    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]


Begin = Callable[[Origin, str, int, int, Placement, Path], Awaitable[Begun]]
"""Of a worker's origin, name, rank, how many of the name were before, where it is to be, and the site's folder."""
