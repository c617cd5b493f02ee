"""What a run has reserved of a cluster: a placement group for each bundle of workers, on the node that was planned.

Each is a group of its own: the bundle whose node is lost goes elsewhere, and the others stay as they are, but for kinds
of workers that have to be on one machine: their bundles follow each other.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from headrace.runtime.node_check import NodeUnfit
from headrace.runtime.placing import (
    Bundle,
    Node,
    NoRoom,
    Placed,
    Team,
    Teams,
    by_node,
    kind_of,
    longest_for_room,
    numbered,
    placed,
    room,
)
from headrace.runtime.protocol import Services
from headrace.runtime.ray import nodes

logger = logging.getLogger(__name__)

LANE = "ray"
ROOM_LANE = "ray room"
"""On which room is looked for, which may last: who has room waits for none of it."""
_NODE_LABEL = "ray.io/node-id"
_RESERVED_S = 10.0
"""In which a group is there, unless somebody else took the room."""
_LOOK_S = 1.0
_ADDED_S = 10.0
"""For which one waits that is added to a run: what others gave back is free a moment later, and somebody waits to hear
of it."""
_UNFIT_S = 30.0
"""After which an unfit node is looked at again: it may have been slow, or was mended."""
_GPU = "GPU"

Options = Mapping[str, Any]
"""Of an actor that Ray makes."""
_Kinds = tuple[str, ...]


@dataclass(slots=True)
class _Reserved:
    placed: Placed
    group: PlacementGroup

    @property
    def bundle(self) -> Bundle:
        return self.placed.bundle

    @property
    def node(self) -> str:
        return self.placed.node


class _NotGiven(NoRoom):
    """The cluster has not, where it seemed to have."""

    def __init__(self, found: Placed, device: str) -> None:
        self.node = found.node
        parts = f", or is in parts of several devices (Ray tells how much {device} a node has free, not of which)"
        super().__init__(
            f"the room for {' + '.join(found.bundle.workers)} on the node {found.node[:8]} was taken by somebody else"
            f"{parts if found.devices else ''}, or it is lost; look at `ray status`"
        )


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a worker is, in the words of people."""

    node: str
    here: bool
    """Whether the controller is on it."""
    devices: tuple[int, ...]
    """Which of the node's, counted as `headrace check` draws them."""


@dataclass(frozen=True, slots=True)
class _Unfit:
    words: str
    until: float


class Reservations:
    def __init__(
        self,
        teams: Teams,
        room_s: float,
        require: Callable[[Mapping[str, Sequence[str]]], Mapping[str, str]],
        together: Collection[str] = (),
    ) -> None:
        """`room_s`: for which a worker that has lost its place waits for room. `require`: looks at nodes, by id, for
        the workers that are to be there, and tells each one's machine; blocks, and raises NodeUnfit. `together`: kinds
        of which all workers of a team are on one machine, and are made anew together."""
        self._teams = teams
        self._require = require
        self._together = tuple(together)
        self._unfit: dict[tuple[str, _Kinds], _Unfit] = {}
        """By node and kinds of workers."""
        self._room_s = room_s
        self._reserved: dict[tuple[str, ...], _Reserved] = {}
        """By the workers of the bundle."""
        self._seats: dict[str, Seat] = {}
        """By worker; of one whose node is lost the last."""
        self._had_room = {worker for team in teams.teams for bundle in team.bundles for worker in bundle.workers}
        """Who is given room from the start, or had some since."""
        self._turn = asyncio.Lock()
        self._taking = threading.Lock()
        """Room is taken by one thread, and given back for good by another."""
        self._closed = False

    def begin(self) -> list[Placed]:
        """Reserve for all workers that there are from the start. Blocking. Raises NoRoom, NodeUnfit."""
        if not self._teams.teams:
            return []
        teams = self._teams
        found = placed(teams.teams, nodes.nodes(teams.device), teams.device, self._together, mend=teams.mend)
        try:
            self._take(found)
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
        clock, waits = services.clock, False
        seconds = self._room_s if worker in self._had_room else min(self._room_s, _ADDED_S)
        seconds, moves = min(seconds, longest_for_room()), math.isinf(longest_for_room())
        end = clock.now() + seconds
        while (reserved := await services.compute(LANE, self._kept, worker, bundle, team)) is None:
            try:
                async with self._turn:
                    reserved = await services.compute(ROOM_LANE, self._of, bundle, team, clock.now, moves)
                break
            except NoRoom as none:
                if clock.now() >= end:
                    key = " (cluster.room_deadline_s)" if seconds == self._room_s else ""
                    raise NoRoom(f"{worker} has waited {seconds:g} s for room{key}: {none}") from none
                if not waits:
                    logger.warning("%s waits for room, for %g s at most: %s", worker, seconds, none)
                    waits = True
            await clock.sleep(_LOOK_S)
        self._had_room.add(worker)
        return self._options(worker, reserved)

    def beside(self, worker: str) -> Options:
        """Of an actor on the node where the worker is, counted as nothing. Blocking. Raises NoRoom where that has no
        place, or its node is lost."""
        if self._teams.team_of(worker) is None:
            return _here()
        node = next((each.node for each in [*self._reserved.values()] if worker in each.bundle.workers), None)
        if node is None or node not in nodes.living():
            raise NoRoom(f"{worker}, which it is to be beside, has no place yet")
        return _on(node)

    def seat(self, worker: str) -> Seat | None:
        """None of one that asks for nothing, or has had no place. At once."""
        return self._seats.get(worker)

    def release(self, worker: str) -> None:
        """It has ended for good. Blocking; on the lane where room is looked for."""
        reserved = self._reserved.pop((worker,), None)
        if reserved is not None:
            _remove(reserved.group)

    def close(self) -> None:
        """Nothing is reserved any more, also by whoever is at it. Blocking, until that one sees it."""
        self._closed = True
        with self._taking:
            for reserved in [*self._reserved.values()]:  # one of which may be given back meanwhile
                _remove(reserved.group)
            self._reserved.clear()

    def _kept(self, worker: str, bundle: Bundle, team: Team) -> _Reserved | None:
        """What is reserved for it, if that stands; of one that has to be with others, if theirs does too."""
        needed = self._joint(bundle, team) if kind_of(worker) in self._together else (bundle,)
        found = [each for needs in needed if (each := self._reserved.get(needs.workers)) is not None]
        if len(found) < len(needed):
            return None
        living = nodes.living()
        if any(each.node not in living for each in found):
            return None
        return next(each for each in found if each.bundle == bundle)

    def _of(self, bundle: Bundle, team: Team, now: Callable[[], float], moves: bool) -> _Reserved:
        """On a node that lives, with all that have to be on its machine. `moves`: whether those of them that have a
        place may lose it for that. Raises NoRoom."""
        joint, living = self._joint(bundle, team), nodes.living()
        for each in joint:
            if (reserved := self._reserved.get(each.workers)) is not None and reserved.node not in living:
                _remove(self._reserved.pop(each.workers).group)
        self._unfit = {key: each for key, each in self._unfit.items() if each.until > now()}
        while not all(each.workers in self._reserved for each in joint):
            try:
                self._take(self._alone(bundle, team, now) if len(joint) == 1 else self._on_one(joint, team, now, moves))
            except _NotGiven as none:
                self._unfit[none.node, _kinds(joint)] = _Unfit(str(none), now() + _UNFIT_S)
            except NoRoom as none:
                unfit = [each.words for (_, kinds), each in self._unfit.items() if kinds == _kinds(joint)]
                if not unfit:
                    raise
                raise NoRoom(f"{none}. Nodes that are unfit: {'; '.join(unfit)}") from none
        return self._reserved[bundle.workers]

    def _alone(self, bundle: Bundle, team: Team, now: Callable[[], float]) -> list[Placed]:
        """Raises NoRoom."""
        while True:
            own = [Team((bundle,), team.spread)]
            found = placed(own, self._fit([bundle]), self._teams.device, mend=self._teams.mend)
            if self._machine(found[0].node, [bundle], now) is not None:
                return found

    def _on_one(self, joint: Sequence[Bundle], team: Team, now: Callable[[], float], moves: bool) -> list[Placed]:
        """Those without a place, on the machine of those that have one; or, if it `moves`, all of them on another.
        Raises NoRoom."""
        fit = self._fit(joint)
        kept = [self._reserved[each.workers].node for each in joint if each.workers in self._reserved]
        machines: dict[str, list[Node]] = {}
        for node in sorted(fit, key=lambda node: (node.id not in kept, -room(node, joint))):
            if node.id not in kept and not room(node, joint):
                break
            machine = self._machine(node.id, joint, now)
            if machine is None:
                continue
            there = machines.setdefault(machine, [])
            there.append(node)
            wanted = self._without_place(joint, there)
            if any(each.workers in self._reserved and (not moves or self._has_others(each)) for each in wanted):
                continue  # they live, and are not made anew
            with suppress(NoRoom):
                return placed([Team(wanted, team.spread)], there, self._teams.device)
        placed([Team(tuple(joint), team.spread)], fit, self._teams.device, mend=self._teams.mend)
        raise NoRoom(
            f"no machine has room for all of {', '.join(worker for each in joint for worker in each.workers)}, and "
            "ranks of one model are on one; lower devices or cpus in cluster.place, or add nodes"
        )

    def _joint(self, bundle: Bundle, team: Team) -> tuple[Bundle, ...]:
        """Those that have to be on one machine with it, and it."""
        joint = tuple(each for each in team.bundles if any(kind in self._together for kind in _kinds([each])))
        return joint if bundle in joint else (bundle,)

    def _has_others(self, bundle: Bundle) -> bool:
        """Whether workers of other kinds are colocated with it."""
        return any(kind not in self._together for kind in _kinds([bundle]))

    def _without_place(self, joint: Sequence[Bundle], there: Sequence[Node]) -> tuple[Bundle, ...]:
        """Those that have none on these nodes."""
        ids = [node.id for node in there]
        have = [each.bundle.workers for each in self._reserved.values() if each.node in ids]
        return tuple(each for each in joint if each.workers not in have)

    def _fit(self, bundles: Sequence[Bundle]) -> list[Node]:
        kinds = _kinds(bundles)
        return [node for node in nodes.nodes(self._teams.device) if (node.id, kinds) not in self._unfit]

    def _machine(self, node: str, bundles: Sequence[Bundle], now: Callable[[], float]) -> str | None:
        """Which one the node is on; None if it is unfit for them."""
        workers = [worker for each in bundles for worker in each.workers]
        try:
            return self._require({node: workers})[node]
        except NodeUnfit as unfit:
            logger.warning("%s is not placed there: %s", " + ".join(workers), unfit)
            self._unfit[node, _kinds(bundles)] = _Unfit(str(unfit), now() + _UNFIT_S)
            return None

    def _take(self, found: Sequence[Placed]) -> None:
        """Reserve all of it, in the place of what the same bundles had. Raises NoRoom: then all is as it was."""
        names, here = nodes.living(), nodes.here()
        made: list[_Reserved] = []
        workers = [each.bundle.workers for each in found]
        kept = [each.placed for each in self._reserved.values() if each.bundle.workers not in workers]
        with self._taking:
            with ExitStack() as undo:
                for each in numbered(found, kept):
                    reserved = self._reserve(each)
                    undo.callback(_remove, reserved.group)
                    made.append(reserved)
                undo.pop_all()
            for reserved in made:
                node = reserved.node
                seat = Seat(names.get(node, node), node == here, reserved.placed.devices)
                self._seats |= dict.fromkeys(reserved.bundle.workers, seat)
                before = self._reserved.get(reserved.bundle.workers)
                self._reserved[reserved.bundle.workers] = reserved
                if before is not None:
                    _remove(before.group)

    def _reserve(self, found: Placed) -> _Reserved:
        """Raises NoRoom."""
        if self._closed:
            raise NoRoom("the run has given its room back")
        bundle = found.bundle
        asked = {"CPU": bundle.cpus, **({self._teams.device: bundle.devices} if bundle.devices else {})}
        group = placement_group([asked], bundle_label_selector=[{_NODE_LABEL: found.node}])
        if not group.wait(_RESERVED_S):
            _remove(group)
            raise _NotGiven(found, self._teams.device)
        return _Reserved(found, group)

    def _options(self, worker: str, reserved: _Reserved) -> Options:
        (cpus,) = (claim.cpus for claim in reserved.bundle.claims if claim.worker == worker)
        devices, name = reserved.bundle.share(worker), self._teams.device
        counted: dict[str, Any] = {"num_gpus": devices} if name == _GPU else {"resources": {name: devices}}
        return {
            "num_cpus": cpus,
            **(counted if devices else {}),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(reserved.group, 0),
        }


def _kinds(bundles: Sequence[Bundle]) -> _Kinds:
    return tuple(dict.fromkeys(kind_of(worker) for each in bundles for worker in each.workers))


def _here() -> Options:
    """On the controller's node, counted as nothing."""
    return _on(nodes.here())


def _on(node: str) -> Options:
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def _remove(group: PlacementGroup) -> None:
    with suppress(RayError):
        remove_placement_group(group)
