"""What a run has reserved of a cluster: a placement group for each bundle of workers, on the node that was planned.

Each is a group of its own: the bundle whose node is lost goes elsewhere, and the others stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from headrace.runtime.node_check import NodeUnfit
from headrace.runtime.placing import Bundle, NoRoom, Placed, Team, Teams, by_node, placed
from headrace.runtime.protocol import Services
from headrace.runtime.ray import nodes

logger = logging.getLogger(__name__)

LANE = "ray"
_NODE_LABEL = "ray.io/node-id"
_RESERVED_S = 10.0
"""In which a group is there, unless somebody else took the room."""
_LOOK_S = 1.0
_GPU = "GPU"

Options = Mapping[str, Any]
"""Of an actor that Ray makes."""


@dataclass(slots=True)
class _Reserved:
    bundle: Bundle
    node: str
    group: PlacementGroup


class Reservations:
    def __init__(self, teams: Teams, room_s: float, require: Callable[[Mapping[str, Sequence[str]]], None]) -> None:
        """`room_s`: for which a worker waits for room. `require`: looks at nodes, by id, for the workers that are to be
        there; blocks, and raises NodeUnfit."""
        self._teams = teams
        self._require = require
        self._unfit: dict[str, None] = {}
        self._room_s = room_s
        self._reserved: dict[tuple[str, ...], _Reserved] = {}
        """By the workers of the bundle."""
        self._turn = asyncio.Lock()

    def begin(self) -> list[Placed]:
        """Reserve for all workers that there are from the start. Blocking. Raises NoRoom, NodeUnfit."""
        if not self._teams.teams:
            return []
        found = placed(self._teams.teams, nodes.nodes(self._teams.device), self._teams.device)
        try:
            for each in found:
                self._reserve(each)
            self._require(by_node(found))
        except (NoRoom, NodeUnfit):
            self.close()
            raise
        return found

    async def options(self, worker: str, services: Services) -> Options:
        """Where its actor is made, and what it counts as, once there is room for it. Raises NoRoom."""
        team = self._teams.team_of(worker)
        if team is None:
            return await services.compute(LANE, _here)
        bundle = next(each for each in team.bundles if worker in each.workers)
        async with self._turn:
            clock, waits = services.clock, False
            end = clock.now() + self._room_s
            while True:
                try:
                    reserved = await services.compute(LANE, lambda: self._of(bundle, team))
                    break
                except NoRoom as none:
                    if clock.now() >= end:
                        raise NoRoom(
                            f"{worker} has waited {self._room_s:g} s for room (cluster.room_deadline_s): {none}"
                        ) from none
                    if not waits:
                        logger.warning("%s waits for room, for %g s at most: %s", worker, self._room_s, none)
                        waits = True
                await clock.sleep(_LOOK_S)
        return self._options(worker, reserved)

    def release(self, worker: str) -> None:
        """It has ended for good. Blocking."""
        for workers in [each for each in self._reserved if each == (worker,)]:
            _remove(self._reserved.pop(workers).group)

    def close(self) -> None:
        """Blocking."""
        for reserved in self._reserved.values():
            _remove(reserved.group)
        self._reserved.clear()

    def _of(self, bundle: Bundle, team: Team) -> _Reserved:
        """On a node that lives. Raises NoRoom."""
        reserved = self._reserved.get(bundle.workers)
        if reserved is not None:
            if reserved.node in nodes.living():
                return reserved
            _remove(self._reserved.pop(bundle.workers).group)
        while True:
            fit = [node for node in nodes.nodes(self._teams.device) if node.id not in self._unfit]
            (found,) = placed([Team((bundle,), team.spread)], fit, self._teams.device)
            try:
                self._require({found.node: bundle.workers})
            except NodeUnfit as unfit:
                logger.warning("%s is not placed there: %s", " + ".join(bundle.workers), unfit)
                self._unfit[found.node] = None
            else:
                return self._reserve(found)

    def _reserve(self, found: Placed) -> _Reserved:
        bundle = found.bundle
        asked = {"CPU": bundle.cpus, **({self._teams.device: bundle.devices} if bundle.devices else {})}
        group = placement_group([asked], bundle_label_selector=[{_NODE_LABEL: found.node}])
        if not group.wait(_RESERVED_S):
            _remove(group)
            raise NoRoom(
                f"the room for {' + '.join(bundle.workers)} was taken by somebody else, or its node is lost; look at "
                "`ray status`"
            )
        reserved = self._reserved[bundle.workers] = _Reserved(bundle, found.node, group)
        return reserved

    def _options(self, worker: str, reserved: _Reserved) -> Options:
        (cpus,) = (seat.cpus for seat in reserved.bundle.seats if seat.worker == worker)
        devices, name = reserved.bundle.share(worker), self._teams.device
        counted: dict[str, Any] = {"num_gpus": devices} if name == _GPU else {"resources": {name: devices}}
        return {
            "num_cpus": cpus,
            **(counted if devices else {}),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(reserved.group, 0),
        }


def _here() -> Options:
    """On the controller's node, counted as nothing."""
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(nodes.here(), soft=False)}


def _remove(group: PlacementGroup) -> None:
    with suppress(RayError):
        remove_placement_group(group)
