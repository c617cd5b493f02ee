"""Whether the machines answer that far workers are on: each has an actor that does nothing else.

The event loop of a worker may stand as long as its kind is allowed to: a user's code may block it, or what computes
and holds Python's lock. A process that does nothing stands with its machine alone. So a worker whose machine answers is
left to its own limit; one that answers nothing either is lost with its machine, long before Ray tells of that.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from headrace.runtime.protocol import Services
from headrace.runtime.ray.nodes import here
from headrace.runtime.together import to_the_end

SILENT_S = 25.0
"""For which a machine may answer nothing. What is lost is to be known within 30 s, and a network that stands still for
a moment, as while a switch starts anew, is to cost nothing."""
_LANE = "pulses"
_LOOK_S = 0.5
_AGAIN_S = 2.0
"""After a pulse has ended: its machine may have ended with it, or the cluster, and workers have not noticed yet."""
_END_S = 5.0
"""In which one that is being made is there."""


class Pulse:
    """An actor."""

    def beat(self) -> None:
        """That its machine answers."""


class Pulses:
    """Of the machines of a run. In its event loop. Of a cluster that was left nothing is asked: Ray ends a process that
    does."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._silent_s: dict[str, float] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}

    def watch(self, node: str) -> None:
        """A worker there has just answered. Until its pulse ends, with the machine or alone; then once more, if one
        answers. Of the controller's own machine nothing is asked."""
        if node not in self._silent_s:
            self._silent_s[node] = 0.0
            if node != here():
                self._watching[node] = self._services.spawn(self._watch(node), f"pulse of the node {node[:8]}")

    def silent_s(self, node: str) -> float:
        """For how long it has answered nothing; 0 of one of which that is not known."""
        return self._silent_s.get(node, 0.0)

    async def close(self) -> None:
        """Nothing is asked any more once this returns."""
        watching, self._watching = [*self._watching.values()], {}
        for each in watching:
            each.cancel()
        if watching:
            await asyncio.wait(watching, timeout=_END_S)

    async def _watch(self, node: str) -> None:
        pulse: Any = None
        try:
            pulse = await to_the_end(self._services.compute(_LANE, _begun, node))
            await self._listen(node, pulse)
        except RayError:  # it has ended, or could not be made
            self._silent_s[node] = 0.0
        except asyncio.CancelledError:
            if pulse is not None:
                with suppress(RayError):
                    ray.kill(pulse, no_restart=True)
            raise
        await self._services.clock.sleep(_AGAIN_S)
        self._watching.pop(node, None)
        del self._silent_s[node]

    async def _listen(self, node: str, pulse: Any) -> None:
        """Until it has ended. Raises RayError."""
        clock, is_there = self._services.clock, False
        while True:
            beat, now = asyncio.ensure_future(_beat(pulse)), clock.now()
            try:
                while not beat.done():
                    await asyncio.wait([beat], timeout=_LOOK_S)
                    # Time in which the loop here did not turn says nothing about the other; nor does that in which the
                    # actor is made.
                    before, now = now, clock.now()
                    if is_there and not beat.done():
                        self._silent_s[node] += min(now - before, 2 * _LOOK_S)
            finally:
                beat.cancel()
            try:
                await beat
            except ActorUnavailableError:  # of its machine nothing was heard
                self._silent_s[node] += _LOOK_S * is_there
            else:
                is_there, self._silent_s[node] = True, 0.0
            await clock.sleep(_LOOK_S)


def _begun(node: str) -> Any:
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(Pulse).options(num_cpus=0, scheduling_strategy=there, max_restarts=0).remote()


async def _beat(pulse: Any) -> None:
    await pulse.beat.remote()
