"""Workers that ask an actor for something: whether they live still. Between processes of one machine the end of a
connection says so; Ray tells an actor nothing of whoever has called it, so that it asks each for its life."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from headrace.runtime.protocol import Services
from headrace.runtime.ray.asked_actor import reason_of
from headrace.runtime.ray.asker import CONTROLLER, Asker

_LANE = "ray"
_AGAIN_S = 1.0
"""After which one that cannot be reached is asked again, until Ray knows of its death."""


class Askers:
    def __init__(self, namespace: str, services: Services, gone: Callable[[Asker, str], None]) -> None:
        """`namespace`: of the run's actors. `gone` is called with the asker that has ended, and why."""
        self._namespace = namespace
        self._services = services
        self._gone = gone
        self._watched: set[Asker] = set()

    def heard(self, number: str) -> None:
        """A call has come. The controller needs no watch: the actor ends with it."""
        asker = Asker.of(number)
        if asker != CONTROLLER and asker not in self._watched:
            self._watched.add(asker)
            self._services.spawn(self._watch(asker), f"life of {asker.name}")

    async def _watch(self, asker: Asker) -> None:
        name, namespace = asker.name, self._namespace
        while True:
            try:
                actor: Any = await self._services.compute(_LANE, lambda: ray.get_actor(name, namespace=namespace))
                why = await actor.life.remote()
                break
            except ActorUnavailableError:
                await self._services.clock.sleep(_AGAIN_S)
            except (RayError, ValueError) as error:  # ValueError: there is no such actor any more
                why = reason_of(error)
                break
        self._watched.discard(asker)
        self._gone(asker, why)
