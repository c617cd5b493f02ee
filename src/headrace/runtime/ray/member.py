"""A worker in an actor of its own, seen from the controller that started it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from headrace import __version__
from headrace.runtime.local.local_refs import GENERATION
from headrace.runtime.local.member_apart import MemberApart
from headrace.runtime.protocol import Services
from headrace.runtime.ray.actor import Actor
from headrace.runtime.ray.asked_actor import AskedActor
from headrace.runtime.ray.boot import ActorBoot
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Placement, WorkerLost

_DEVICES = "CUDA_VISIBLE_DEVICES"
_BEAT_S = 0.5
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


class RayWorker(MemberApart):
    """See `MemberApart`."""

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
        super().__init__(name, rank, origin.spec, where, closes=origin.closes)
        self._origin = origin
        self._services = services
        self._forget = forget
        self._asked: AskedActor | None = None
        self._living: asyncio.Task[str] | None = None

    async def _begin(self) -> AskedActor:
        actor = await self._services.compute("ray", self._actor)
        types = self._origin.types
        asked = AskedActor(actor, lambda: types, self._services, self.name, self.rank, f"controller>{self._generation}")
        asked.give_up = self.lose
        self._asked = asked
        self._living = self._services.spawn(asked.life(), f"life of {self.name}")
        self._services.spawn(self._watch(asked, self._living), f"watch over {self.name}")
        return asked

    def _kill(self) -> None:
        if self._asked is not None:
            self._asked.kill()
            self._forget(self.name, (self._generation + 1) * GENERATION)

    async def _has_left(self, seconds: float) -> None:
        if self._living is not None:
            await asyncio.wait([self._living], timeout=seconds)

    async def _cleared(self) -> None:
        living, self._living, self._asked = self._living, None, None
        if living is not None:
            await asyncio.wait([living], timeout=_GONE_S)

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
            limits=dict(where.limits),
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
        clock = self._services.clock
        while not living.done():
            await asyncio.wait([living], timeout=_BEAT_S)
            if living.done() or not self._is_made:
                continue
            beat, silent_s, now = asyncio.ensure_future(asked.turns()), 0.0, clock.now()
            while not beat.done() and not living.done():
                await asyncio.wait([beat, living], timeout=_BEAT_S, return_when=asyncio.FIRST_COMPLETED)
                # Time in which the loop here did not turn says nothing about the other.
                before, now = now, clock.now()
                silent_s += min(now - before, 2 * _BEAT_S)
                if silent_s > self._where.silence_s and not beat.done():
                    self.lose(f"its event loop has not turned for {silent_s:.0f} s")
                    break
            beat.cancel()
            with contextlib.suppress(WorkerLost, asyncio.CancelledError):
                await beat
        if asked is self._asked:
            self.lose(living.result())
