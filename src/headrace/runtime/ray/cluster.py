"""A Ray cluster as the place of a run's workers: one of its own on this machine, or one that is joined."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from headrace.runtime.asked_of_nodes import AskedOfNodes
from headrace.runtime.event_loop import on_own_thread
from headrace.runtime.ground import ColumnsLost, GroundLost
from headrace.runtime.local.local_refs import Keepers
from headrace.runtime.local.member_apart import MemberApart
from headrace.runtime.local.service import Service
from headrace.runtime.local.worker_group import Member
from headrace.runtime.node_check import IN_STORES, NodeUnfit
from headrace.runtime.placing import NoRoom, Teams
from headrace.runtime.process.boot import PACKAGE, path_of
from headrace.runtime.process.origin import Origin
from headrace.runtime.process.processes import Processes
from headrace.runtime.protocol import Services
from headrace.runtime.ray.admission import ClusterError, ClusterRefusal, host_and_port, require_same_cluster
from headrace.runtime.ray.joining import Reached, join, leave, own_address
from headrace.runtime.ray.member import RayWorker
from headrace.runtime.ray.near_process import NearProcess
from headrace.runtime.ray.nodes import here
from headrace.runtime.ray.pulses import Pulses
from headrace.runtime.ray.refs import ActorRefs
from headrace.runtime.ray.reservations import ROOM_LANE, Options, Reservations
from headrace.runtime.ray.scouts import Inspection
from headrace.runtime.ray.shelf import SHELF, Shelf
from headrace.runtime.ray.shelf_watch import ShelfWatch
from headrace.runtime.ray.store_gate import StoreGate
from headrace.runtime.refs import Ref, Refs
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Placement, WorkerLost

logger = logging.getLogger(__name__)

LANE = "ray"
_NO_NAME = r"[^A-Za-z0-9_.-]+"
_START_S = 120.0
_LOOK_S = 1.0


class Head(Protocol):
    """A cluster of the run's own. Both block."""

    def start(self) -> str:
        """Its address."""

    def ended(self) -> str | None:
        """What of it has ended, if anything has. At once."""

    def close(self) -> None: ...


class RayCluster:
    """See `Apart` and `Ground`.

    Where all its workers are on this machine, they are near: they are spoken to, and keep columns, as processes do
    (`runtime/process/`), and Ray has their places and lives. Else all goes through Ray, and so do columns.
    """

    def __init__(
        self,
        run: str,
        *,
        address: str | None = None,
        head: Head | None = None,
        logs: Path | None = None,
        packages: Sequence[str] = (PACKAGE,),
        near: bool = True,
        asked: AskedOfNodes | None = None,
    ) -> None:
        """`run` names the run, as its folder does. `address`: of a cluster; unless given, `head` starts one here. A
        process that is in one already stays in it, whose address is then the only one that may be given. `logs`: a
        folder; what `rollout/0` prints is in rollout-0.log there, where a node sees it. `near`: whether workers are
        spoken to as on this machine, if they are."""
        self.keeps_all = not near
        self._address = address
        self._head = head
        self._logs = logs
        self._packages = tuple(packages)
        self._namespace = f"headrace-{re.sub(_NO_NAME, '-', Path(run).name)}-{secrets.token_hex(4)}"
        self._services: Services
        self._types: Callable[[], WireTypes]
        self._pulses: Pulses
        self._refs: ActorRefs | None = None
        self._shelf: Any = None
        self._watch: ShelfWatch | None = None
        self._shelf_lost = asyncio.Event()
        self._joins = False
        self._is_open = False
        self._ended = asyncio.Event()
        """Of the cluster."""
        self._asked = asked or AskedOfNodes()
        self._beside: dict[str, Callable[[], str]] = {}
        """By worker, the one that it is beside."""
        self._reservations = Reservations(Teams(), self._asked.room_s, lambda workers: {})
        self._lines = Processes(run, logs=logs, packages=packages, begin=self._begin)
        """To those that are near; and the run's folder in memory."""

    async def open(
        self, services: Services, types: Callable[[], WireTypes], keepers: Keepers, find: Callable[[str], Service]
    ) -> Refs:
        """See `Apart.open`. Raises ClusterError, ClusterRefusal, and what `head` raises."""
        if not self._is_open:
            self._services, self._types, self._pulses = services, types, Pulses(services)
            await services.compute(LANE, self._connect)
            self._is_open = True
        if not self.keeps_all:
            return await self._lines.open(services, types, keepers, find)
        if self._refs is None:
            await services.compute(LANE, self._set_up_shelf)
            self._watch = ShelfWatch(self._shelf, services.clock)
            self._refs = ActorRefs("", 0, types(), self._namespace, StoreGate(host_and_port(own_address())))
        return self._refs

    def member(self, kind: type[Any], spec: object, name: str, rank: int, types: WireTypes, where: Placement) -> Member:
        """See `Apart.member`."""
        if (beside := where.beside) is not None:
            self._beside[name] = lambda: beside(rank)
        member = self._member(kind, spec, name, rank, types, where)
        member.once_closed = lambda: self._release(name)
        return member

    async def _release(self, worker: str) -> None:
        """Nothing is kept in a cluster that has ended, where the call would not return."""
        if not self._ended.is_set():
            await self._services.compute(ROOM_LANE, self._reservations.release, worker)

    def _member(
        self, kind: type[Any], spec: object, name: str, rank: int, types: WireTypes, where: Placement
    ) -> MemberApart:
        if not self.keeps_all:
            return self._lines.member(kind, spec, name, rank, types, where)
        log = None if self._logs is None else self._logs / f"{name.replace('/', '-')}.log"
        closes = callable(getattr(kind, "close", None))
        origin = Origin(path_of(kind, self._packages), self._packages, types, spec, closes, log)
        told = self._services, self._forget, self._room, self._ended, self._pulses
        return RayWorker(name, rank, origin, self._namespace, where, *told)

    def make_folder(self, name: str) -> Path:
        """See `Processes.make_folder`: of this machine."""
        return self._lines.make_folder(name)

    async def _begin(
        self, origin: Origin, name: str, rank: int, generation: int, where: Placement, folder: Path
    ) -> NearProcess:
        options = await self._room(name, rank)
        return await NearProcess.begin(
            self._services, self._namespace, origin, name, rank, generation, where, folder, options
        )

    async def _room(self, worker: str, rank: int) -> Options:
        """See `Reservations.options`, or `beside`. Raises WorkerLost."""
        try:
            if (beside := self._beside.get(worker)) is not None:
                return await self._services.compute(LANE, self._reservations.beside, beside())
            return await self._reservations.options(worker, self._services)
        except NoRoom as none:
            raise WorkerLost(rank, str(none), worker=worker) from none

    def _forget(self, keeper: str, below: int) -> None:
        if self._refs is not None:
            self._shelf.forget.remote(keeper, below)

    def address(self, worker: str) -> str:
        """See `Apart.address`."""
        return f"{self._namespace} {worker}" if self.keeps_all else self._lines.address(worker)

    def devices(self, worker: str) -> Sequence[str]:
        """See `Apart.devices`."""
        seat = self._reservations.seat(worker)
        if seat is None:
            return ()
        if not seat.devices:
            return ("cpu" if seat.here else f"cpu of {seat.node}",)
        of_node = "" if self._head is not None else f" of {seat.node}"
        return [f"{self._asked.teams.device} {number}{of_node}" for number in seat.devices]

    async def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Apart.get`."""
        if not self.keeps_all:
            return await self._lines.get(ref, names)
        assert self._refs is not None
        return await self._refs.get_soon(ref, names)

    async def ended(self) -> NoReturn:
        """See `Ground.ended`."""
        reached: Reached | None = None
        while True:
            await asyncio.sleep(_LOOK_S)
            if not self._is_open:
                continue
            if self._head is not None:
                why = self._head.ended()
            else:
                reached = reached or Reached(own_address())
                why = await on_own_thread(reached.lost)
            if why is not None:
                self._ended.set()
                whose = "the run's Ray" if self._head is not None else "the Ray cluster"
                raise GroundLost(f"{whose} has ended: {why}; --resume the run once it can be there again")
            answers = reached is None or reached.answers
            if answers and self._watch is not None and await self._watch.is_new():
                self._shelf_lost.set()

    async def columns_lost(self) -> NoReturn:
        """See `Ground.columns_lost`."""
        await self._shelf_lost.wait()
        self._shelf_lost.clear()
        raise ColumnsLost("the actor that knew where columns are (shelf) has ended, and Ray has made it anew")

    async def close(self) -> None:
        """See `Apart.close`. The cluster ends where it was started here."""
        await self._lines.close()
        if self._is_open:
            await self._pulses.close()
            self._is_open = False
            refs, self._refs, self._watch = self._refs, None, None
            await on_own_thread(lambda: self._leave(refs))

    def _connect(self) -> None:
        self._joins = not ray.is_initialized()
        if not self._joins:  # this process is in a cluster already, as a notebook's may be
            self._head = None
            if self._address is not None:
                require_same_cluster(self._address, own_address())
        try:
            if self._joins:
                self._join()
            self._reserve()
        except BaseException:
            self._leave(None)
            raise

    def _join(self) -> None:
        address = self._head.start() if self._address is None and self._head is not None else self._address
        if address is None:
            raise ClusterError("this process is in no Ray cluster, and is given the address of none")
        join(address, self._namespace)

    def _reserve(self) -> None:
        """What its workers ask for; and whether all of their nodes see this machine's memory."""
        asked = self._asked
        if not asked.teams.teams:
            return
        marker = self.make_folder("here") / "marker"
        marker.write_text(secrets.token_hex(16))
        inspection = Inspection(asked, marker)
        self._reservations = Reservations(asked.teams, asked.room_s, inspection.require, asked.together)
        try:
            self._reservations.begin()
        except (NoRoom, NodeUnfit) as error:
            raise ClusterRefusal(str(error)) from error
        if not inspection.all_near:
            self.keeps_all = True
            logger.warning("a node does not see this machine's memory, so that %s", IN_STORES)
        elif not self.keeps_all:
            inspection.stay_near()

    def _set_up_shelf(self) -> None:
        shelf: Any = ray.remote(Shelf).options(
            name=SHELF,
            namespace=self._namespace,
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(here(), soft=False),  # it lasts as long as the run
            max_restarts=-1,  # empty; the run then puts again what it needs
            max_concurrency=1000,
        )
        self._shelf = shelf.remote()
        ray.get(self._shelf.count.remote(), timeout=_START_S)

    def _leave(self, refs: ActorRefs | None) -> None:
        if not self._ended.is_set():
            self._reservations.close()
        if refs is not None:
            refs.close()
        if refs is not None and not self._ended.is_set():
            ray.kill(self._shelf, no_restart=True)
        if self._joins:
            leave()
        if self._head is not None:
            self._head.close()
