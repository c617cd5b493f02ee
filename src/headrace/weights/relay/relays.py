"""The relays of a run, as the controller has them: has versions leave along chains of them.

A version is at a relay once that says so. One that cannot be reached is left out, told of, made anew if it was lost,
and given the newest version by itself. A group is formed anew when relays come, leave or fail; what fails leaves every
relay with the version that it had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.observe.events import Events
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.signal import Signal
from headrace.runtime.supervision import pause_after
from headrace.runtime.workers import WorkerError, WorkerLost, Workers
from headrace.weights.addresses import LOOPBACK
from headrace.weights.plane import NotThereYet, WeightError, WeightOffer
from headrace.weights.relay.calls import RelayCalls
from headrace.weights.relay.chain_order import chain_order
from headrace.weights.relay.faults import Fault, is_of_peer
from headrace.weights.relay.journey import SOURCE, Found, Journey, Plane, Sent
from headrace.weights.relay.meetings import Meetings
from headrace.weights.relay.nccl_use import NcclUse
from headrace.weights.relay.relay_place import RelayPlace
from headrace.weights.version import Version


class Relays:
    def __init__(
        self,
        workers: Workers[Any],
        clock: Clock,
        seconds: float,
        *,
        host: str = LOOPBACK,
        deltas: bool,
        summed: bool = False,
        device_of: Callable[[int], str] | None = None,
    ) -> None:
        """`workers`: the first is the source's. `seconds`: that a journey may take. `host`: an address on the network
        that relays speak over, each from its machine's own. `deltas`: whether what changed is sent where a receiver has
        the version before. `summed`: whether what goes whole has checksums. `device_of`: see `NcclUse`."""
        self.changed = Signal()
        """A version is at a relay, or one was lost or left out."""
        workers.changed.listen(self.changed.notify)
        self.events = Events()
        """To the run's record."""
        self.newest: WeightOffer | None = None
        """At the source."""
        self._workers = workers
        self._clock = clock
        self._calls = RelayCalls(workers, clock, seconds)
        self._host = host
        self._meetings = Meetings(self._calls, NcclUse(device_of), self.events.report)
        self._deltas = deltas
        self._summed = summed
        self._places: dict[int, RelayPlace] = {}
        self._rank_of: dict[str, int] = {}
        self._turn = asyncio.Lock()
        self._address = ""
        self._before: Version | None = None

    async def take_in(self, rank: int, users: Sequence[str] = ()) -> None:
        """A relay that is there: the source's first. `users`: the workers that take versions from it. Raises
        WorkerError, WorkerLost, WaitTimeout."""
        async with self._turn:
            place = RelayPlace(await self._plane_of(rank))
            self._places[rank] = place
            self._rank_of |= dict.fromkeys(users, rank)

    async def let_go(self, worker: str) -> None:
        """It takes no versions any more; its relay ends, if it was the last to take them from there. Raises
        WorkerError, WorkerLost, WaitTimeout."""
        async with self._turn:
            rank = self._rank_of.pop(worker, None)
            if rank is None or rank in self._rank_of.values():
                return
            del self._places[rank]
            self._meetings.part()
        await self._workers.leave(rank)

    def rank_of(self, worker: str) -> int | None:
        """The relay of a worker; None for one that takes versions from the source itself."""
        return self._rank_of.get(worker)

    def has_newest(self, worker: str) -> bool:
        """Whether the newest version is where it takes it from."""
        rank = self._rank_of.get(worker)
        return rank is None or (rank not in self._workers.lost and not self._is_behind(rank))

    def version_at(self, rank: int) -> Version | None:
        """The newest that was there; before the first the newest that there is."""
        place = self._places[rank]
        return place.last or (None if self.newest is None else self.newest.version)

    def offer_at(self, rank: int) -> WeightOffer:
        """Of what is there. Raises NotThereYet."""
        place, lost = self._places[rank], self._workers.lost
        if place.offer is None or rank in lost:
            fault = lost.get(rank) or place.fault
            why = f" ({fault})" if fault else ""
            raise NotThereYet(f"relay {rank} has no version yet{why}; it is given one as soon as it can be reached")
        return place.offer

    async def carry(self, address: str) -> None:
        """Have the newest version of the trainer that publishes at `address` leave for all that can be reached.
        Returns once it is there, or was tried twice: what fails is told of, and left to `mend`."""
        async with self._turn:
            if address != self._address:  # a new life of the trainer: it need not wait for what the one before lacked
                source = self._places[SOURCE]
                source.failures, source.due = 0, 0.0
            self._address = address
            for _ in range(2):
                if not await self._looked(has_left=True):
                    return
                await self._along_chain()

    async def mend(self) -> None:
        """Make lost relays anew, and give those that are behind the newest version: those whose pause is over. Those
        that failed are tried one by one, in a group of two, so that nobody else waits for them."""
        for rank in [rank for rank in self._places if rank != SOURCE]:
            await self._made_anew(rank)
        async with self._turn:
            if not self._address or not await self._looked():
                return
            await self._along_chain()
            behind = self._behind()
        for rank in behind:  # between two of them a publication has its turn
            async with self._turn:
                if rank in self._behind() and await self._looked():
                    await self._along([rank], self._base_of(rank), alone=True)

    def next_due(self) -> float | None:
        """Seconds until `mend` has something to do; None if nothing is to be done."""
        lost, source = self._workers.lost, self._places[SOURCE]
        waiting = [
            max(place.due, source.due)
            for rank, place in self._places.items()
            if rank in lost or (rank != SOURCE and self._is_behind(rank))
        ]
        return max(min(waiting) - self._clock.now(), 0.0) if waiting else None

    async def _along_chain(self) -> None:
        """Send the newest version to those that are behind and have not failed: to those that have the one before only
        what changed."""
        of_base: dict[Version | None, list[int]] = {}
        for rank in self._behind():
            if not self._places[rank].failures:
                of_base.setdefault(self._base_of(rank), []).append(rank)
        for base, ranks in of_base.items():
            if not await self._along(ranks, base, alone=False):
                return

    def _behind(self) -> list[int]:
        """Those that can be tried now."""
        lost, now = self._workers.lost, self._clock.now()
        return [
            rank
            for rank, place in self._places.items()
            if rank != SOURCE and rank not in lost and place.due <= now and self._is_behind(rank)
        ]

    def _base_of(self, rank: int) -> Version | None:
        """The version that it is sent the changes to; None where it is sent the whole: one that failed too, whose copy
        of that version may be damaged, or not of the same bits."""
        place = self._places[rank]
        if not self._deltas or place.failures or place.offer is None or place.offer.version != self._before:
            return None
        return self._before

    def _is_behind(self, rank: int) -> bool:
        offer = self._places[rank].offer
        return self.newest is not None and (offer is None or offer.version < self.newest.version)

    async def _looked(self, *, has_left: bool = False) -> bool:
        """Whether it is known what there is to be sent. `has_left`: a version is at the trainer's address, so that a
        relay that sees none is on another machine, where a life of the trainer was before."""
        if not await self._made_anew(SOURCE):
            return False
        try:
            found: Found = await self._calls.one(SOURCE, "look", self._address, what="what there is to be sent")
        except (WorkerError, WorkerLost, WaitTimeout) as error:
            self._left_out(SOURCE, error)
            return False
        if found.offer is None and has_left:
            await self._workers.kill(SOURCE, f"it sees nothing at {self._address}, where the trainer is now")
        if found.offer is None and (has_left or self.newest is not None):
            why = f"{self._address} holds no version any more; the trainer may be on its way back"
            self._left_out(SOURCE, WeightError(why))
            return False
        self.newest, self._before = found.offer or self.newest, found.before
        return True

    async def _along(self, ranks: Sequence[int], base: Version | None, *, alone: bool) -> bool:
        """False if something failed: whose fault it was is told, if it is known. `alone`: it is the only one, and the
        group is its own."""
        newest = self.newest
        assert newest is not None
        assert newest.manifest is not None
        hosts = {rank: self._places[rank].plane.host for rank in (SOURCE, *ranks)}
        ranks = chain_order(ranks, hosts, hosts[SOURCE])
        sent: Sent | None = None
        lives = {rank: place.life for rank, place in self._places.items()}
        if (faults := await self._formed([SOURCE, *ranks], alone=alone)) is None:
            order = (SOURCE, *(self._meetings.group.index(rank) for rank in ranks))
            journey = Journey(newest.manifest, order, base, self._summed, newest.swap_check)
            began = self._clock.now()
            asked = dict.fromkeys(ranks, ("take", (journey,)))
            answers, faults = await self._calls.each({SOURCE: ("send", (journey, self._address)), **asked})
            there = [rank for rank in ranks if answers.get(rank) is True and self._is_of(rank, lives)]
            for rank in there:
                place = self._places[rank]
                place.last = newest.version
                place.offer = replace(newest, transport=place.plane.transport, address=place.plane.address)
            for place in [self._places[rank] for rank in ([SOURCE, *there] if there else [])]:
                place.failures, place.due, place.fault = 0, 0.0, ""
            sent = answers.get(SOURCE)
            if there and sent is not None:
                self._tell_of(newest.version, sent, there, self._clock.now() - began, base)
            if there:
                self.changed.notify()
            if not faults and not (sent is not None and sent.overtaken):
                self._meetings.succeeded()
                return True
        self._meetings.failed(faults.values())
        if sent is not None and sent.overtaken:
            return False  # what is newer is on its way
        known = {rank: error for rank, error in faults.items() if not is_of_peer(error)}
        if not known:  # that of one whom nobody reaches is not: each of them has to be tried alone
            known = {rank: error for rank, error in faults.items() if rank != SOURCE}
        for rank, error in known.items():
            if self._is_of(rank, lives) and not (isinstance(error, WorkerLost) and self._is_told(rank)):
                self._left_out(rank, error)
        return False

    def _is_of(self, rank: int, lives: Mapping[int, int]) -> bool:
        """Whether it is there, and still the one that it was: `mend` makes lost ones anew while others are sent to."""
        place = self._places.get(rank)
        return place is not None and place.life == lives.get(rank)

    def _is_told(self, rank: int) -> bool:
        """That it was lost: `mend` may have seen it first."""
        place = self._places.get(rank)
        return place is None or place.is_told

    def _left_out(self, rank: int, error: Fault) -> None:
        place = self._places.get(rank)
        if place is None:
            return  # it left meanwhile
        place.failures += 1
        pause = pause_after(place.failures)
        place.due = self._clock.now() + pause
        place.fault = str(error)
        if rank in self._workers.lost:
            place.offer, place.is_told = None, True
        self.events.report("relay_left_out", {"relay": rank, "message": f"{error}; it is tried again in {pause:g} s"})
        self.changed.notify()  # whoever mends waits for the pause from now on

    async def _formed(self, members: Sequence[int], *, alone: bool) -> dict[int, Fault] | None:
        """See `Meetings.formed`: whoever else is in the group stays, unless they are to be `alone`."""
        lost = self._workers.lost
        stay = [] if alone else [rank for rank in self._meetings.group if rank not in lost]
        return await self._meetings.formed(members, stay, {rank: each.plane for rank, each in self._places.items()})

    async def _made_anew(self, rank: int) -> bool:
        """Whether it is there, perhaps anew: if it was lost, and its pause is over."""
        place, lost = self._places.get(rank), self._workers.lost
        if place is None:
            return False
        if rank in lost and not place.is_told:
            self._left_out(rank, WorkerLost(rank, lost[rank], worker=self._workers.handles[rank].worker))
        if place.due > self._clock.now():
            return False
        if rank not in lost:
            return True
        self._meetings.part()
        try:
            await self._workers.restart(rank)
            await self._begun(rank)
        except (WorkerError, WorkerLost, WaitTimeout) as error:
            self._left_out(rank, error)
            return False
        return True

    async def _begun(self, rank: int) -> None:
        """It has just been made. Raises WorkerError, WorkerLost, WaitTimeout."""
        place = self._places.get(rank)
        if place is None:
            return  # it left meanwhile
        place.plane, place.offer = await self._plane_of(rank), None
        place.is_told = False
        place.life += 1
        if rank == SOURCE:
            self._meetings.source_is_new()

    async def _plane_of(self, rank: int) -> Plane:
        found: Plane = await self._calls.one(rank, "plane", self._host, what="where it keeps versions")
        return found

    def _tell_of(
        self, version: Version, sent: Sent, ranks: Sequence[int], seconds: float, base: Version | None
    ) -> None:
        self.events.report(
            "weights_carried",
            {
                "version": str(version),
                "transport": f"collective ({self._meetings.carrier})",
                "relays": list(ranks),
                "bytes": sent.size,
                "share": round(sent.sent / max(sent.size, 1), 4),
                "seconds": round(seconds, 4),
                "bytes_per_s": round(sent.size / seconds) if seconds else None,
                **({} if base is None else {"base": str(base)}),
            },
        )
