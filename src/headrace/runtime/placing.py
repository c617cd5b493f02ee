"""Which node and which devices each worker is on: pure, of what nodes have left.

A bundle is what is on one node together: one worker, or the colocated ones of several roles, which share its devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.errors import HeadraceError

_GRAIN = 1e-4
"""Ray counts no finer."""


class NoRoom(HeadraceError, RuntimeError):
    """No node has what a bundle asks for."""


def kind_of(worker: str) -> str:
    """Of engine/0: engine."""
    return worker.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Seat:
    """Of one worker."""

    worker: str
    """As engine/0."""
    devices: float = 0.0
    """Whole ones, or a part of one."""
    cpus: float = 1.0


@dataclass(frozen=True, slots=True)
class Bundle:
    seats: tuple[Seat, ...]

    @property
    def devices(self) -> float:
        """Those that its workers share."""
        return max(seat.devices for seat in self.seats)

    @property
    def cpus(self) -> float:
        return sum(seat.cpus for seat in self.seats)

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(seat.worker for seat in self.seats)

    def share(self, worker: str) -> float:
        """Of the bundle's devices, for Ray to count: all of it to a worker alone, as much to each of several."""
        users = [seat.worker for seat in self.seats if seat.devices]
        if worker not in users:
            return 0.0
        return self.devices if len(users) == 1 else int(self.devices / len(users) / _GRAIN) * _GRAIN


@dataclass(frozen=True, slots=True)
class Team:
    """Bundles that are packed, or spread, together: the workers of a role, or of several that are colocated."""

    bundles: tuple[Bundle, ...]
    spread: bool = False


@dataclass(frozen=True, slots=True)
class Teams:
    """All bundles of a run."""

    teams: tuple[Team, ...] = ()
    one_more: Mapping[str, Team] = field(default_factory=dict)
    """By the kind of worker: a team of one, whose worker has no number yet, for those that are added later."""
    device: str = "GPU"
    """What Ray counts them by."""

    def team_of(self, worker: str) -> Team | None:
        """None for a worker that asks for nothing."""
        for team in self.teams:
            if any(worker in bundle.workers for bundle in team.bundles):
                return team
        more = self.one_more.get(kind_of(worker))
        if more is None:
            return None
        ((seat,),) = (bundle.seats for bundle in more.bundles)
        return Team((Bundle((Seat(worker, seat.devices, seat.cpus),)),), more.spread)


@dataclass(frozen=True, slots=True)
class Node:
    """What one has left."""

    id: str
    name: str
    """For people."""
    cpus: float
    devices: tuple[float, ...]
    """Of each device the part that is free."""
    here: bool = False
    """Whether the controller is on it."""


@dataclass(frozen=True, slots=True)
class Placed:
    bundle: Bundle
    node: str
    """Its id."""
    devices: tuple[int, ...]
    """Which of the node's."""


def placed(teams: Sequence[Team], nodes: Sequence[Node], device: str = "GPU") -> list[Placed]:
    """Each bundle with its node. The team with the largest bundle is first: by devices, then by processors; of equal
    ones the first. `device`: what they are called. Raises NoRoom."""
    left = {node.id: _Left(node) for node in nodes}
    found: list[Placed] = []
    by_size = sorted(teams, key=lambda team: max((each.devices, each.cpus) for each in team.bundles), reverse=True)
    for team in by_size:
        of_team: dict[str, int] = {}
        for bundle in team.bundles:
            fits = [each for each in left.values() if each.fits(bundle)]
            if not fits:
                raise NoRoom(_shortage(bundle, teams, nodes, [*left.values()], device))
            chosen = min(fits, key=lambda each: _rank(each, of_team, team, left))
            of_team[chosen.node.id] = of_team.get(chosen.node.id, 0) + 1
            found.append(Placed(bundle, chosen.node.id, chosen.take(bundle)))
    return found


def room(node: Node, bundles: Sequence[Bundle]) -> int:
    """How many of them would fit, one after another."""
    return _Left(node).room(bundles)


def by_node(found: Sequence[Placed]) -> Mapping[str, Sequence[str]]:
    """The workers of each node."""
    workers: dict[str, list[str]] = {}
    for each in found:
        workers.setdefault(each.node, []).extend(each.bundle.workers)
    return workers


def _rank(left: _Left, of_team: Mapping[str, int], team: Team, all_left: Mapping[str, _Left]) -> tuple[float, ...]:
    """The least is chosen; of equal ones the first."""
    has = of_team.get(left.node.id, 0)
    if team.spread:
        return has, -sum(left.devices), -left.cpus
    return not has, -left.room(team.bundles), not left.node.here


class _Left:
    """Of a node, while bundles are placed."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.cpus = node.cpus
        self.devices = [*node.devices]

    def fits(self, bundle: Bundle) -> bool:
        return self.cpus + _GRAIN >= bundle.cpus and self._chosen(bundle) is not None

    def room(self, bundles: Sequence[Bundle]) -> int:
        """How many of them would fit, one after another."""
        copy, count = _Left(self.node), 0
        copy.cpus, copy.devices = self.cpus, [*self.devices]
        for bundle in bundles:
            if copy.fits(bundle):
                copy.take(bundle)
                count += 1
        return count

    def take(self, bundle: Bundle) -> tuple[int, ...]:
        """The devices that it gets. It fits."""
        chosen = self._chosen(bundle) or ()
        for number in chosen:
            self.devices[number] -= min(bundle.devices, 1.0)
        self.cpus -= bundle.cpus
        return chosen

    def _chosen(self, bundle: Bundle) -> tuple[int, ...] | None:
        """Whole devices, or the fullest one that has the part."""
        wanted = bundle.devices
        if not wanted:
            return ()
        if wanted >= 1:
            whole = [number for number, free in enumerate(self.devices) if free + _GRAIN >= 1]
            return tuple(whole[: int(wanted)]) if len(whole) >= wanted else None
        parts = [(free, number) for number, free in enumerate(self.devices) if free + _GRAIN >= wanted]
        return (min(parts)[1],) if parts else None


def _shortage(bundle: Bundle, teams: Sequence[Team], nodes: Sequence[Node], left: Sequence[_Left], device: str) -> str:
    asked: dict[str, list[Seat]] = {}
    for seat in (seat for team in teams for each in team.bundles for seat in each.seats):
        asked.setdefault(kind_of(seat.worker), []).append(seat)
    roles = "; ".join(f"{role} {len(seats)} x ({amount(seats[0], device)})" for role, seats in asked.items())
    have = "; ".join(
        f"{node.name} {sum(node.devices):g} {device} and {node.cpus:g} CPU, of which {sum(each.devices):g} and "
        f"{each.cpus:g} are left"
        for node, each in zip(nodes, left, strict=True)
    )
    wanted = f"{bundle.devices:g} {device} and {bundle.cpus:g} CPU"
    more = "" if bundle.devices <= 1 else f" ({bundle.devices:g} devices of one node)"
    return (
        f"no node has room for {' + '.join(bundle.workers)}, which ask for {wanted}{more}. The run asks for: {roles}. "
        f"The cluster has free: {have or 'no node'}. Lower devices or cpus in cluster.place, have fewer workers "
        "(engine.replicas, rollout.workers, a model's layout), colocate roles by cluster.colocate, or add nodes"
    )


def amount(seat: Seat, device: str) -> str:
    """As `0.5 GPU, 1 CPU`."""
    return f"{seat.devices:g} {device}, {seat.cpus:g} CPU" if seat.devices else f"{seat.cpus:g} CPU"
