"""The group of relays by which journeys are made: how it comes together, and by what it speaks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import count

from headrace.observe.events import EventSink
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.workers import WorkerError, WorkerLost
from headrace.weights.relay.calls import RelayCalls
from headrace.weights.relay.faults import Fault
from headrace.weights.relay.journey import SOURCE, Meeting, Plane
from headrace.weights.relay.nccl_use import NcclUse


class Meetings:
    """One after another, of one group at a time."""

    def __init__(self, calls: RelayCalls, nccl: NcclUse, tell: EventSink) -> None:
        """`tell`: is given events."""
        self.group: tuple[int, ...] = ()
        """Ranks of those that are together, by their places; empty where none are."""
        self._calls = calls
        self._nccl = nccl
        self._tell = tell
        self._port: int | None = None
        self._numbers = count()

    @property
    def carrier(self) -> str:
        """What the group speaks by."""
        return "nccl" if self._nccl.is_used else "gloo"

    def succeeded(self) -> None:
        """A journey of the group has."""
        self._nccl.succeeded()

    def failed(self, faults: Collection[Fault]) -> None:
        """A journey has, or the group did not come together, for these."""
        if (fault := self._nccl.failed(faults)) is not None:
            self._tell_of_gloo(fault)
        self.part()

    def part(self) -> None:
        """The next journey has a new group."""
        self.group = ()

    def source_is_new(self) -> None:
        """The source's relay was made anew, and listens nowhere yet."""
        self._port = None

    async def formed(
        self, members: Sequence[int], stay: Collection[int], planes: Mapping[int, Plane]
    ) -> dict[int, Fault] | None:
        """A group that has `members`; the faults of those that could not join. `stay`: who else is to be in a new one.
        `planes`: of all relays, in the order of their places. They meet at the source's address."""
        if self.group and all(rank in self.group for rank in members):
            return None
        self._nccl.ungrouped()
        try:
            if self._port is None:
                host = planes[SOURCE].host
                self._port = await self._calls.one(SOURCE, "listen", host, what="a place where relays meet")
        except (WorkerError, WorkerLost, WaitTimeout) as error:
            return {SOURCE: error}
        found = {rank: plane for rank, plane in planes.items() if rank in members or rank in stay}
        faults = await self._met(found, self._port)
        if (refused := self._nccl.refused(faults.values())) is not None:
            self._tell_of_gloo(refused)
            faults = await self._met(found, self._port)
        self.group = () if faults else tuple(found)
        return faults or None

    async def _met(self, planes: Mapping[int, Plane], port: int) -> dict[int, Fault]:
        """A new group of these, in their order; the faults of those that could not join."""
        devices = self._nccl.devices([*planes], [plane.devices for plane in planes.values()])
        meeting = Meeting(planes[SOURCE].host, port, f"group {next(self._numbers)}", len(planes), devices)
        asked = {rank: ("join", (meeting, number, plane.host)) for number, (rank, plane) in enumerate(planes.items())}
        return (await self._calls.each(asked))[1]

    def _tell_of_gloo(self, error: Fault) -> None:
        self._tell("relays_by_gloo", {"message": f"relays speak by gloo from now on, since NCCL failed: {error}"})
