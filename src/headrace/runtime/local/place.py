"""All workers of one runtime, and whose refs are where."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.observe.failure import words_of
from headrace.runtime.at_start import anew_if_lost
from headrace.runtime.local.host import WorkerHost
from headrace.runtime.local.local_refs import Keepers, KeptHere
from headrace.runtime.local.local_worker import LocalWorker, Make
from headrace.runtime.local.service import Service
from headrace.runtime.local.worker_group import Member, WorkerGroup
from headrace.runtime.protocol import Services
from headrace.runtime.refs import Ref, RefLost, Refs
from headrace.runtime.together import together
from headrace.runtime.wire.copying import Carrier
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import BASE_TYPES, Handle, Peer, Placement, Worker, WorkerLost

if TYPE_CHECKING:
    from headrace.runtime.apart import Apart

W = TypeVar("W", bound=Worker)

logger = logging.getLogger(__name__)


class Place:
    def __init__(self, services: Services, *, copying: bool, types: WireTypes, apart: Apart | None = None) -> None:
        """`types` of columns."""
        self._services = services
        self._copying = copying
        self._types = BASE_TYPES.with_types(types)
        self._apart = apart
        self._members: dict[str, Member] = {}
        self._groups: list[WorkerGroup[Any]] = []
        self._numbers: dict[str, int] = {}
        """Of the next worker of each kind."""
        self._keepers = Keepers()
        self._opening = asyncio.Lock()
        self._making = asyncio.Lock()
        """In this process nothing is made while another is: those who load models share what is the process's."""
        self._kept = KeptHere("", self._keepers, Carrier(self._types, copying=copying))
        self.refs: Refs = self._kept

    async def start(self, kind: type[W], specs: Sequence[object], where: Placement) -> WorkerGroup[W]:
        """See `Runtime.start`."""
        if not specs:
            raise ValueError(f"{kind.__name__}: no spec is given; give one for each worker")
        names = self._named(kind, len(specs))
        self._types = self._types.with_types(kind.types)
        if self._apart is not None:
            async with self._opening:
                elsewhere = await self._apart.open(self._services, lambda: self._types, self._keepers, self._service)
                self._keepers.elsewhere = elsewhere
                if self._apart.keeps_all:
                    self.refs = elsewhere
        made = await self._made(kind, [*zip(names, specs, range(len(specs)), strict=True)], where)

        async def more(spec: object, rank: int) -> tuple[Member, Handle]:
            (name,) = self._named(kind, 1)
            (member,) = await self._made(kind, [(name, spec, rank)], where)
            return member, self._handle(member)

        group: WorkerGroup[W] = WorkerGroup(more)
        for member in made:
            group.take(member, self._handle(member))
        self._groups.append(group)
        return group

    def devices(self, worker: str) -> Sequence[str]:
        """See `Runtime.devices`."""
        return () if self._apart is None else self._apart.devices(worker)

    def lose_columns(self) -> None:
        """All that are kept in this process, by whomever."""
        self._keepers.lose_all()

    def _named(self, kind: type[Any], count: int) -> list[str]:
        """The names of so many more of a kind."""
        first = self._numbers.get(kind.kind, 0)
        self._numbers[kind.kind] = first + count
        return [f"{kind.kind}/{first + place}" for place in range(count)]

    async def _made(
        self, kind: type[W], wanted: Sequence[tuple[str, object, int]], where: Placement
    ) -> Sequence[Member]:
        """One of each name, spec and rank; if one cannot be made, none is left."""
        members = [self._member(kind, spec, name, rank, where) for name, spec, rank in wanted]
        self._members.update({member.name: member for member in members})
        try:
            async with self._making:
                for member in members:
                    if isinstance(member, LocalWorker):
                        await member.start()
            apart = [member for member in members if not isinstance(member, LocalWorker)]
            await together(map(self._begun, apart), [member.name for member in apart])
        except BaseException:
            await asyncio.gather(*(member.close() for member in members), return_exceptions=True)
            for member in members:
                del self._members[member.name]
            raise
        return members

    async def _begun(self, member: Member) -> None:
        await anew_if_lost(lambda losses: member.start(), self._services.clock)

    def reach(self, handle: Handle) -> Peer:
        """Raises WorkerLost if there is none of the name."""
        if handle.worker not in self._members:
            raise WorkerLost(handle.rank, "there is none of this name", worker=handle.worker)
        return self._members[handle.worker]

    @property
    def kept(self) -> int:
        """Refs that the controller put here and did not free."""
        return len(self._kept)

    async def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Services.get`."""
        if ref.keeper in self._keepers and (ref.keeper or self._apart is None or not self._apart.keeps_all):
            return self._keepers.get(ref, names)
        if self._keepers.elsewhere is None or self._apart is None:
            raise RefLost(ref)
        return await self._apart.get(ref, names)

    async def close(self) -> None:
        """End all workers, those that were started last first. Their errors are logged."""
        groups, self._groups = self._groups, []
        for group in reversed(groups):
            for name, error in (await group.end()).items():
                logger.warning("at the end of %s: %s", name, words_of(error))
        if self._apart is not None:
            await self._apart.close()

    def _member(self, kind: type[W], spec: object, name: str, rank: int, where: Placement) -> Member:
        if where.process:
            if self._apart is None:
                raise ValueError(f"{name} is to have a process of its own, and this runtime was given no place for it")
            return self._apart.member(kind, spec, name, rank, self._types, where)
        carrier = Carrier(self._types, copying=self._copying)
        member = LocalWorker(name, rank, self._maker(kind, spec, name, rank, carrier), self._services, carrier, where)
        member.when_lost(partial(self._keepers.remove, name))
        return member

    def _maker(self, kind: type[W], spec: object, name: str, rank: int, carrier: Carrier) -> Make:
        async def make() -> tuple[WorkerHost, Service]:
            refs = KeptHere(name, self._keepers, carrier)
            host = WorkerHost(name, rank, self._services, refs, self.get, self.reach)
            try:
                carried = carrier.carry(spec, f"the spec of {name}")
                return host, await Service.make(kind, carried, host, name, rank, self._services)
            except BaseException:
                host.end()
                self._keepers.remove(name)
                raise

        return make

    def _handle(self, member: Member) -> Handle:
        if self._apart is None:
            return Handle(member.name, member.rank, "")
        here = isinstance(member, LocalWorker)
        return Handle(member.name, member.rank, self._apart.address("" if here else member.name))

    def _service(self, name: str) -> Service:
        """Of a worker in this process. Raises WorkerLost."""
        member = self._members.get(name)
        if not isinstance(member, LocalWorker):
            raise WorkerLost(0, "it is not in the controller's process", worker=name)
        return member.service
