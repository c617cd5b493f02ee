"""A worker in an actor of its own, seen from the controller that started it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.runtime.local.local_refs import GENERATION
from headrace.runtime.local.member_apart import MemberApart
from headrace.runtime.process.origin import Origin
from headrace.runtime.protocol import Services
from headrace.runtime.ray.actor import Actor
from headrace.runtime.ray.asked_actor import AskedActor
from headrace.runtime.ray.asker import CONTROLLER
from headrace.runtime.ray.making import boot_of, make_actor
from headrace.runtime.ray.pulses import SILENT_S, Pulses
from headrace.runtime.ray.reservations import Options
from headrace.runtime.workers import Placement, WorkerLost

_BEAT_S = 0.5
_GONE_S = 30.0
"""In which an actor that was killed is gone, and its name free."""


class RayWorker(MemberApart):
    """See `MemberApart`."""

    def __init__(
        self,
        name: str,
        rank: int,
        origin: Origin,
        namespace: str,
        where: Placement,
        services: Services,
        forget: Callable[[str, int], None],
        room: Callable[[str, int], Awaitable[Options]],
        ended: asyncio.Event,
        pulses: Pulses,
    ) -> None:
        """`namespace`: of the run's actors. `forget`: the refs of a keeper, below a number. `room`: where the actor of
        a name and rank is to be, once there is room; raises WorkerLost. `ended`: the cluster has, which tells of no
        death any more. `pulses`: of the run's machines."""
        super().__init__(name, rank, origin.spec, where, closes=origin.closes)
        self._origin = origin
        self._namespace = namespace
        self._services = services
        self._forget = forget
        self._room = room
        self._cluster_ended = ended
        self._pulses = pulses
        self._asked: AskedActor | None = None
        self._living: asyncio.Task[str] | None = None

    async def _begin(self) -> AskedActor:
        options = await self._room(self.name, self.rank)
        actor = await self._services.compute("ray", self._actor, options)
        types = self._origin.types
        asked = AskedActor(actor, lambda: types, self._services, self.name, self.rank, CONTROLLER.prefix)
        asked.give_up = self.lose
        self._asked = asked
        self._living = self._services.spawn(self._life(asked), f"life of {self.name}")
        self._services.spawn(self._watch(asked, self._living), f"watch over {self.name}")
        return asked

    async def _life(self, asked: AskedActor) -> str:
        """Until it has ended, or what it is in: why."""
        living, ended = asyncio.ensure_future(asked.life()), asyncio.ensure_future(self._cluster_ended.wait())
        try:
            await asyncio.wait([living, ended], return_when=asyncio.FIRST_COMPLETED)
            return living.result() if living.done() else "the cluster that it was in has ended"
        finally:
            living.cancel()
            ended.cancel()

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

    def _actor(self, options: Options) -> Any:
        """Ray's handle of a new one. Blocking."""
        boot = boot_of(
            self._origin, self.name, self.rank, self._generation, self._where, options, namespace=self._namespace
        )
        return make_actor(Actor, boot, self.name, options)

    async def _watch(self, asked: AskedActor, living: asyncio.Task[str]) -> None:
        """Until it has ended, or its event loop has not turned for too long, or its machine answers nothing."""
        clock, node = self._services.clock, ""
        quiet_s = silent_s = 0.0
        """Since it was heard last; and of that, since it is made: until then others have a limit for it."""
        while not living.done() and asked is self._asked:
            await asyncio.wait([living], timeout=_BEAT_S)
            if living.done():
                continue
            beat, now = asyncio.ensure_future(asked.turns()), clock.now()
            while not beat.done() and not living.done():
                await asyncio.wait([beat, living], timeout=_BEAT_S, return_when=asyncio.FIRST_COMPLETED)
                # Time in which the loop here did not turn says nothing about the other.
                before, now = now, clock.now()
                passed = min(now - before, 2 * _BEAT_S)
                quiet_s, silent_s = quiet_s + passed, silent_s + passed * self._is_made
                if beat.done():
                    continue
                if silent_s > self._where.silence.most_s:
                    self.lose(self._where.silence.reason(silent_s))
                    break
                if (nothing_s := min(quiet_s, self._pulses.silent_s(node))) > SILENT_S:
                    self.lose(f"its machine has answered nothing for {nothing_s:.0f} s")
                    break
            beat.cancel()
            with contextlib.suppress(WorkerLost, asyncio.CancelledError):
                node = await beat
                self._pulses.watch(node)
                quiet_s = silent_s = 0.0
        if asked is self._asked and living.done():
            self.lose(living.result())
