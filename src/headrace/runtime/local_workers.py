"""Workers in the process of the runtime: inline, and under virtual time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Generic, TypeVar

from headrace.runtime.copying import Carrier
from headrace.runtime.host import WorkerHost
from headrace.runtime.local_refs import Keepers, KeptHere
from headrace.runtime.local_worker import LocalWorker, Make
from headrace.runtime.protocol import Services
from headrace.runtime.refs import Ref
from headrace.runtime.service import Service
from headrace.runtime.signal import Signal
from headrace.runtime.together import together
from headrace.runtime.wire_types import WireTypes
from headrace.runtime.workers import BASE_TYPES, Handle, Peer, Placement, Worker, WorkerLost

W = TypeVar("W", bound=Worker)


class LocalWorkers(Generic[W]):
    """`Workers`, each a `LocalWorker`."""

    def __init__(self, members: Sequence[LocalWorker], handles: Sequence[Handle]) -> None:
        self.handles = handles
        self.changed = Signal()
        self._members = members
        for member in members:
            member.when_lost(self.changed.notify)

    @property
    def lost(self) -> Mapping[int, str]:
        """See `Workers.lost`."""
        return {member.rank: member.lost for member in self._members if member.lost is not None}

    async def call(
        self, method: str, *args: Any, rank: int | None = None, what: str, seconds: float | None = None
    ) -> list[Any]:
        """See `Workers.call`."""
        asked = self._members if rank is None else [self._members[rank]]
        return await together(
            (member.call(method, *args, what=what, seconds=seconds) for member in asked),
            (f"{method} of {member.name}" for member in asked),
        )

    async def stream(
        self, method: str, *args: Any, rank: int, what: str, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """See `Workers.stream`."""
        async with aclosing(self._members[rank].stream(method, *args, what=what, seconds=seconds)) as items:
            async for item in items:
                yield item

    async def restart(self, rank: int) -> None:
        """See `Workers.restart`."""
        member = self._members[rank]
        member.lose("it is made anew")
        await member.start()
        self.changed.notify()

    async def kill(self, rank: int, reason: str) -> None:
        """See `Workers.kill`. A call on a lane that does not return goes on for nobody."""
        self._members[rank].lose(reason)

    async def close(self) -> None:
        """See `Workers.close`."""
        await together((member.close() for member in self._members), (f"end of {each.name}" for each in self._members))


class LocalPlace:
    """All workers of one process, and whose refs are there."""

    def __init__(self, services: Services, *, copying: bool, types: WireTypes, address: str = "") -> None:
        """`types` of what is put."""
        self._services = services
        self._copying = copying
        self._types = BASE_TYPES.with_types(types)
        self._address = address
        self._workers: dict[str, LocalWorker] = {}
        self._groups: list[LocalWorkers[Any]] = []
        self.keepers = Keepers()
        self.refs = KeptHere("", self.keepers, Carrier(self._types, copying=copying))

    async def start(self, kind: type[W], specs: Sequence[object], where: Placement) -> LocalWorkers[W]:
        """See `Runtime.start`."""
        names = [f"{kind.kind}/{rank}" for rank in range(len(specs))]
        if not names:
            raise ValueError(f"{kind.__name__}: no spec is given; give one for each worker")
        if names[0] in self._workers:
            raise ValueError(f"{names[0]} is there already; start all workers of a kind at once")
        carrier = Carrier(self._types.with_types(kind.types), copying=self._copying)
        members = [
            LocalWorker(name, rank, self._maker(kind, spec, name, rank, carrier), self._services, carrier, where)
            for rank, (name, spec) in enumerate(zip(names, specs, strict=True))
        ]
        for name, member in zip(names, members, strict=True):
            self._workers[name] = member
            member.when_lost(partial(self.keepers.remove, name))
        try:
            await together((member.start() for member in members), names)
        except BaseException:
            for name, member in zip(names, members, strict=True):
                member.lose("another could not be made")
                del self._workers[name]
            raise
        made: LocalWorkers[W] = LocalWorkers(members, [Handle(each.name, each.rank, self._address) for each in members])
        self._groups.append(made)
        return made

    def reach(self, handle: Handle) -> Peer:
        """Raises WorkerLost if there is none of the name."""
        if handle.worker not in self._workers:
            raise WorkerLost(handle.rank, "there is none of this name", worker=handle.worker)
        return self._workers[handle.worker]

    async def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Services.get`."""
        return self.refs.get(ref, names)

    async def close(self) -> None:
        """End all workers, the last that was started first."""
        groups, self._groups = self._groups, []
        for group in reversed(groups):
            await group.close()

    def _maker(self, kind: type[W], spec: object, name: str, rank: int, carrier: Carrier) -> Make:
        async def make() -> tuple[WorkerHost, Service]:
            refs = KeptHere(name, self.keepers, carrier)
            host = WorkerHost(name, rank, self._services, refs, self.get, self.reach)
            carried = carrier.carry(spec, f"the spec of {name}")
            return host, await Service.make(kind, carried, host, name, rank, self._services)

        return make
