"""A worker in an actor of its own, seen from the controller that started it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from headrace import __version__
from headrace.runtime.local.awaited import END_S
from headrace.runtime.local.local_refs import GENERATION
from headrace.runtime.protocol import Services
from headrace.runtime.ray.actor import Actor
from headrace.runtime.ray.asked_actor import AskedActor
from headrace.runtime.ray.boot import ActorBoot
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Placement, WorkerLost

_DEVICES = "CUDA_VISIBLE_DEVICES"
_BEAT_S = 0.5
_LEAVE_S = 5.0
"""In which an actor that is told to end has to have ended."""
_CALLS = 4096
"""That one actor may have in flight: most of them wait."""
_GONE_S = 30.0
"""In which an actor that was killed is gone, and its name free."""


@dataclass(frozen=True, slots=True)
class ActorOrigin:
    """What a worker is made of, each time."""

    path: str
    """Of its class: module:Class."""
    packages: tuple[str, ...]
    types: WireTypes
    spec: object
    closes: bool
    """Whether it has a method `close`."""
    log: Path | None
    namespace: str


class RayWorker:
    """A `Peer`, and a member of a `WorkerGroup`."""

    here = None

    def __init__(
        self,
        name: str,
        rank: int,
        origin: ActorOrigin,
        where: Placement,
        services: Services,
        forget: Callable[[str, int], None],
    ) -> None:
        """`forget`: the refs of a keeper, below a number."""
        self._forget = forget
        self.name = name
        self.rank = rank
        self._is_made = False
        self._ended: str | None = None
        """Why, if it has."""
        self._origin = origin
        self._where = where
        self._services = services
        self._generation = -1
        self._asked: AskedActor | None = None
        self._living: asyncio.Task[str] | None = None
        self._watching: asyncio.Task[Any] | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def lost(self) -> str | None:
        """See `Member.lost`."""
        return None if self._is_made and self._ended is None else self._ended or "it is not made yet"

    def when_lost(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        """Raises WorkerError, WorkerLost, WaitTimeout, WireError."""
        await self._cleared()
        self._generation += 1
        origin, where = self._origin, self._where
        self._is_made, self._ended = False, None
        try:
            actor = await self._services.compute("ray", self._actor)
            asked = AskedActor(
                actor, lambda: origin.types, self._services, self.name, self.rank, f"controller>{self._generation}"
            )
            asked.give_up = self.lose
            self._asked = asked
            self._living = self._services.spawn(asked.life(), f"life of {self.name}")
            self._watching = self._services.spawn(self._watch(asked, self._living), f"watch over {self.name}")
            await asked.build(origin.spec, where.start_s)
            self._is_made = True
        except BaseException as error:
            self.lose(f"it could not be made: {error}")
            await self._cleared()
            raise

    async def call(self, method: str, *args: Any, what: str, seconds: float | None = None) -> Any:
        """See `Workers.call`; the one answer."""
        return await self._present().call(method, args, what, self._seconds(seconds))

    async def stream(
        self, method: str, *args: Any, what: str, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """See `Workers.stream`."""
        asked = self._present()
        async with aclosing(asked.stream(method, args, what, self._seconds(seconds))) as items:
            async for item in items:
                yield item

    def lose(self, reason: str) -> None:
        """It is no more: its actor is killed."""
        if self._ended is not None:
            return
        self._ended = reason
        if self._asked is not None:
            self._asked.kill()
            self._asked.end(reason)
            self._forget(self.name, (self._generation + 1) * GENERATION)
        for listener in self._listeners:
            listener()

    async def close(self) -> None:
        """Its own `close`, then the end of its actor. Raises WorkerError, WorkerLost, WaitTimeout."""
        try:
            if self.lost is None and self._origin.closes:
                await self.call("close", what="its end", seconds=END_S)
            if self.lost is None and self._asked is not None and self._living is not None:
                self._asked.leave()
                await asyncio.wait([self._living], timeout=_LEAVE_S)
        finally:
            self.lose("it was closed")
            await self._cleared()

    def _actor(self) -> Any:
        """Ray's handle of a new one. Blocking."""
        origin, where = self._origin, self._where
        boot = ActorBoot(
            kind=origin.path,
            packages=list(origin.packages),
            name=self.name,
            rank=self.rank,
            generation=self._generation,
            threads=where.threads,
            namespace=origin.namespace,
            log=None if origin.log is None else str(origin.log),
            paths=[path for path in sys.path if path],
            devices=os.environ.get(_DEVICES),
            version=__version__,
            python=platform.python_version(),
        )
        made: Any = ray.remote(Actor).options(
            name=self.name,
            namespace=origin.namespace,
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(),
                soft=False,  # where weights in shared memory are
            ),
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=_CALLS,
        )
        return made.remote(boot.text())

    async def _watch(self, asked: AskedActor, living: asyncio.Task[str]) -> None:
        """Until it has ended, or its event loop has not turned for too long."""
        clock, silent_s = self._services.clock, 0.0
        while not living.done():
            await asyncio.wait([living], timeout=_BEAT_S)
            if living.done() or not self._is_made:
                continue
            began = clock.now()
            beat = asyncio.ensure_future(asked.keeps())
            while not beat.done() and not living.done():
                await asyncio.wait([beat, living], timeout=_BEAT_S, return_when=asyncio.FIRST_COMPLETED)
                silent_s = clock.now() - began
                if silent_s > self._where.silence_s:
                    beat.cancel()
                    self.lose(f"its event loop has not turned for {silent_s:.0f} s")
                    return
            beat.cancel()
            with contextlib.suppress(WorkerLost, asyncio.CancelledError):
                await beat
        if asked is self._asked:
            self.lose(living.result())

    async def _cleared(self) -> None:
        """Once nothing of the actor is left."""
        living, self._living, self._asked = self._living, None, None
        if living is not None:
            await asyncio.wait([living], timeout=_GONE_S)

    def _present(self) -> AskedActor:
        if self.lost is not None or self._asked is None:
            raise WorkerLost(self.rank, self.lost or "it is not made yet", worker=self.name)
        return self._asked

    def _seconds(self, seconds: float | None) -> float:
        return self._where.deadline_s if seconds is None else seconds
