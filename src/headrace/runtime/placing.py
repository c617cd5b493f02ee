"""Which node and which devices each worker is on: pure, of what nodes have left.

A bundle is what is on one node together: one worker, or the colocated ones of several roles, which share its devices.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice

from headrace.errors import HeadraceError

_GRAIN = 1e-4
"""Ray counts no finer."""
_MOST_STEPS = 20_000
"""In which places are looked for: a second or so."""
LESS = (
    "Lower devices or cpus in cluster.place, have fewer workers (engine.replicas, rollout.workers, a model's layout), "
    "colocate roles by cluster.colocate, or add nodes"
)
"""For people: how `headrace train` asks for less."""


class NoRoom(HeadraceError, RuntimeError):
    """No node has what a bundle asks for."""


_ROOM_S: ContextVar[float] = ContextVar("room_s", default=math.inf)


@contextmanager
def room_within(seconds: float) -> Iterator[None]:
    """Who is made by this task meanwhile, and by tasks that it begins, waits no longer for room."""
    before = _ROOM_S.set(seconds)
    try:
        yield
    finally:
        _ROOM_S.reset(before)


def longest_for_room() -> float:
    """Seconds for which one that is made now may wait for room: see `room_within`."""
    return _ROOM_S.get()


def kind_of(worker: str) -> str:
    """Of engine/0: engine."""
    return worker.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Claim:
    """What one worker takes of its node."""

    worker: str
    """As engine/0."""
    devices: float = 0.0
    """Whole ones, or a part of one."""
    cpus: float = 1.0


@dataclass(frozen=True, slots=True)
class Bundle:
    claims: tuple[Claim, ...]

    @property
    def devices(self) -> float:
        """Those that its workers share."""
        return max(claim.devices for claim in self.claims)

    @property
    def cpus(self) -> float:
        return sum(claim.cpus for claim in self.claims)

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(claim.worker for claim in self.claims)

    def share(self, worker: str) -> float:
        """Of the bundle's devices, for Ray to count: all of it to a worker alone, as much to each of several."""
        users = [claim.worker for claim in self.claims if claim.devices]
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
    mend: str = LESS
    """How to ask for less, for people."""

    def team_of(self, worker: str) -> Team | None:
        """None for a worker that asks for nothing."""
        for team in self.teams:
            if any(worker in bundle.workers for bundle in team.bundles):
                return team
        more = self.one_more.get(kind_of(worker))
        if more is None:
            return None
        ((claim,),) = (bundle.claims for bundle in more.bundles)
        return Team((Bundle((Claim(worker, claim.devices, claim.cpus),)),), more.spread)


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


def placed(
    teams: Sequence[Team],
    nodes: Sequence[Node],
    device: str = "GPU",
    together: Collection[str] = (),
    *,
    mend: str = LESS,
) -> list[Placed]:
    """Each bundle with its node. The team that needs most on one node is first: devices, then processors; of equal ones
    the first. `device`: what they are called. `together`: kinds of workers of which a team that is packed has all on
    one node, if that can be; it may be on several, which are one machine, if not. Where those that came first leave no
    room, others are tried. `mend`: how to ask for less. Raises NoRoom."""
    joint = [_joint(team, together) for team in teams]
    numbers = sorted(range(len(teams)), key=lambda number: _need(teams[number], joint[number]), reverse=True)
    wanted = [_Wanted(bundle, teams[n], n, bundle in joint[n]) for n in numbers for bundle in teams[n].bundles]
    for on_one in (True, False) if any(each.joint for each in wanted) else (False,):
        search = _Search(wanted, nodes, on_one=on_one)
        if (found := search.found()) is not None:
            return found
    raise NoRoom(f"{_shortage(*search.short, teams, nodes, device)}. {mend}")


def room(node: Node, bundles: Sequence[Bundle]) -> int:
    """How many of them would fit, one after another."""
    return _Left(node).room(bundles)


def numbered(found: Sequence[Placed], kept: Sequence[Placed]) -> list[Placed]:
    """`found`, each with numbers of devices that `kept` and those before it leave it, its own if they do. What a
    cluster tells to be free of a node has no numbers: who comes later may have been given those of others."""
    free: dict[tuple[str, int], float] = {}

    def left(node: str, number: int) -> float:
        return free.get((node, number), 1.0)

    numbers: list[Placed] = []
    for each in (*kept, *found):
        part = min(each.bundle.devices, 1.0)
        devices = each.devices
        if len(numbers) >= len(kept) and any(left(each.node, number) + _GRAIN < part for number in devices):
            used = sorted((rest, n) for (node, n), rest in free.items() if node == each.node and rest + _GRAIN >= part)
            unused = (number for number in count() if (each.node, number) not in free)
            devices = tuple(islice(chain((number for _, number in used), unused), len(devices)))
        for number in devices:
            free[each.node, number] = left(each.node, number) - part
        numbers.append(replace(each, devices=devices))
    return numbers[len(kept) :]


def by_node(found: Sequence[Placed]) -> Mapping[str, Sequence[str]]:
    """The workers of each node."""
    workers: dict[str, list[str]] = {}
    for each in found:
        workers.setdefault(each.node, []).extend(each.bundle.workers)
    return workers


def _joint(team: Team, together: Collection[str]) -> tuple[Bundle, ...]:
    if team.spread:
        return ()
    found = tuple(each for each in team.bundles if any(kind_of(worker) in together for worker in each.workers))
    return found if len(found) > 1 else ()


def _need(team: Team, joint: Sequence[Bundle]) -> tuple[float, float]:
    """Devices and processors of the most that is to be on one node."""
    most = max((each.devices, each.cpus) for each in team.bundles)
    return max(most, (sum(each.devices for each in joint), sum(each.cpus for each in joint)))


@dataclass(frozen=True, slots=True)
class _Wanted:
    bundle: Bundle
    team: Team
    number: int
    """Of the team."""
    joint: bool
    """It is to be where the others of its team are that are so."""


_Choice = tuple["_Left", tuple[int, ...]]
"""A node, and which of its devices."""


class _Search:
    """One bundle after another has the best place that is left; where one has none, those before it have the next
    best, the last one first. What is left of the nodes, and has been found to be too little, is not tried again."""

    def __init__(self, wanted: Sequence[_Wanted], nodes: Sequence[Node], *, on_one: bool) -> None:
        """`on_one`: whether those that are joint have to be on one node."""
        self._wanted = wanted
        self._left = [_Left(node) for node in nodes]
        self._on_one = on_one
        self._taken: list[_Choice] = []
        self._failed: set[object] = set()
        self.short: tuple[Bundle, list[tuple[tuple[float, ...], float]]]
        """The first one that had no place, and of each node what it had left then of each device, and of processors."""

    def found(self) -> list[Placed] | None:
        """None if there is no room for all, or it would take too long to find."""
        open_choices = [iter(self._choices())] if self._wanted else []
        for _ in range(_MOST_STEPS + len(self._wanted)):
            if len(self._taken) == len(self._wanted):
                pairs = zip(self._wanted, self._taken, strict=True)
                return [Placed(each.bundle, left.node.id, devices) for each, (left, devices) in pairs]
            chosen = next(open_choices[-1], None)
            if chosen is not None:
                self._take(chosen)
                open_choices.append(iter(self._choices()))
                continue
            self._failed.add(self._state())
            open_choices.pop()
            if not open_choices:
                return None
            left, devices = self._taken.pop()
            left.give_back(self._wanted[len(self._taken)].bundle, devices)
        return None

    def _take(self, chosen: _Choice) -> None:
        left, devices = chosen
        left.take(self._wanted[len(self._taken)].bundle, devices)
        self._taken.append(chosen)

    def _choices(self) -> list[_Choice]:
        """For the next bundle, the best first."""
        if len(self._taken) == len(self._wanted) or (self._failed and self._state() in self._failed):
            return []
        each = self._wanted[len(self._taken)]
        fits = [(left, choices) for left in self._left if (choices := left.choices(each.bundle))]
        if not fits and not self._failed:
            self.short = each.bundle, [(tuple(left.devices), left.cpus) for left in self._left]
        if (home := self._home(each)) is not None:
            fits = [(left, choices) for left, choices in fits if left is home]
        has: dict[str, int] = {}
        for before, (left, _) in zip(self._wanted, self._taken, strict=False):
            if before.number == each.number:
                has[left.node.id] = has.get(left.node.id, 0) + 1
        fits.sort(key=lambda pair: _rank(pair[0], has, each.team))
        return [(left, devices) for left, choices in fits for devices in choices]

    def _home(self, each: _Wanted) -> _Left | None:
        """Where it has to be, if others are there."""
        if not (self._on_one and each.joint):
            return None
        pairs = zip(self._wanted, self._taken, strict=False)
        return next((left for before, (left, _) in pairs if before.joint and before.number == each.number), None)

    def _state(self) -> object:
        """What decides whether the rest finds room: nodes and devices with as much left are as good."""
        place = len(self._taken)
        home = self._home(self._wanted[place])
        return place, None if home is None else home.state(), tuple(sorted(left.state() for left in self._left))


def _rank(left: _Left, of_team: Mapping[str, int], team: Team) -> tuple[float, ...]:
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

    def room(self, bundles: Sequence[Bundle]) -> int:
        """How many of them would fit, one after another."""
        copy, count = _Left(self.node), 0
        copy.cpus, copy.devices = self.cpus, [*self.devices]
        for bundle in bundles:
            if choices := copy.choices(bundle):
                copy.take(bundle, choices[0])
                count += 1
        return count

    def state(self) -> tuple[float, tuple[float, ...]]:
        return round(self.cpus, 4), tuple(sorted(round(free, 4) for free in self.devices))

    def take(self, bundle: Bundle, devices: Sequence[int]) -> None:
        """`devices`: one of its choices."""
        for number in devices:
            self.devices[number] -= min(bundle.devices, 1.0)
        self.cpus -= bundle.cpus

    def give_back(self, bundle: Bundle, devices: Sequence[int]) -> None:
        for number in devices:
            self.devices[number] += min(bundle.devices, 1.0)
        self.cpus += bundle.cpus

    def choices(self, bundle: Bundle) -> list[tuple[int, ...]]:
        """Devices that it could have, the best first: whole ones, or of each that has the part one of as much that is
        free, the fullest first."""
        wanted = bundle.devices
        if self.cpus + _GRAIN < bundle.cpus:
            return []
        if not wanted:
            return [()]
        if wanted >= 1:
            whole = [number for number, free in enumerate(self.devices) if free + _GRAIN >= 1]
            return [tuple(whole[: int(wanted)])] if len(whole) >= wanted else []
        parts: dict[float, int] = {}
        for number, free in enumerate(self.devices):
            if free + _GRAIN >= wanted:
                parts.setdefault(round(free, 4), number)
        return [(parts[free],) for free in sorted(parts)]


def _shortage(
    bundle: Bundle,
    left: Sequence[tuple[Sequence[float], float]],
    teams: Sequence[Team],
    nodes: Sequence[Node],
    device: str,
) -> str:
    asked: dict[str, list[Claim]] = {}
    for claim in (claim for team in teams for each in team.bundles for claim in each.claims):
        asked.setdefault(kind_of(claim.worker), []).append(claim)
    roles = "; ".join(f"{role} {len(claims)} x ({amount(claims[0], device)})" for role, claims in asked.items())
    have = "; ".join(
        f"{node.name} {sum(node.devices):g} {device} and {node.cpus:g} CPU, "
        f"of which {_sum(devices)} and {cpus:g} are left"
        for node, (devices, cpus) in zip(nodes, left, strict=True)
    )
    wanted = f"{bundle.devices:g} {device} and {bundle.cpus:g} CPU"
    more = "" if bundle.devices <= 1 else f" ({bundle.devices:g} devices of one node)"
    return (
        f"no node has room for {' + '.join(bundle.workers)}, which ask for {wanted}{more}. The run asks for: {roles}. "
        f"The cluster has free: {have or 'no node'}"
    )


def _sum(devices: Sequence[float]) -> str:
    """As `1.5`; as `1.2 (0.6 + 0.6)` where no device has all of it, and one at least has a part."""
    parts = [round(free, 4) for free in devices if free > _GRAIN]
    told = f"{sum(parts):g}"
    return told if len(parts) < 2 or min(parts) == 1 else f"{told} ({' + '.join(f'{part:g}' for part in parts)})"


def amount(claim: Claim, device: str) -> str:
    """As `0.5 GPU, 1 CPU`."""
    return f"{claim.devices:g} {device}, {claim.cpus:g} CPU" if claim.devices else f"{claim.cpus:g} CPU"
