"""One relay: the slots that it keeps versions in, and its place in a group. Blocking."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore

from headrace.runtime.ports import NoPort
from headrace.weights.devices import device_named
from headrace.weights.gloo import listening_store
from headrace.weights.plane import WeightError
from headrace.weights.relay import chain
from headrace.weights.relay.journey import Found, Journey, Meeting, Sent
from headrace.weights.relay.line import STILL_S, Line, PeerError
from headrace.weights.relay.nccl_wire import NcclFault, NcclWire
from headrace.weights.relay.wire import GlooWire, Wire
from headrace.weights.shm import ShmPublisher, ShmReceiver
from headrace.weights.slot_format import HEADER
from headrace.weights.version import Version


class Relay:
    """Of the source, which reads a trainer's slots, or of a receiver, which has its own: whoever is on its machine
    takes versions from there, as from a trainer."""

    def __init__(self, folder: Path, still_s: float = STILL_S) -> None:
        """`folder`: empty, of this relay alone, in memory. `still_s`: that any wait for another may take."""
        self._still_s = still_s
        self._slots = ShmPublisher(folder)
        self._store: Store | None = None
        self._line: Line | None = None
        self._sources: dict[str, ShmReceiver] = {}

    @property
    def transport(self) -> str:
        return self._slots.transport

    @property
    def address(self) -> str:
        """What a receiver on this machine is made of."""
        return self._slots.address

    def listen(self, host: str) -> int:
        """The port of the store by which groups find together, at an address of this machine. Raises WeightError."""
        try:
            self._store, port = listening_store(host, self._still_s)
        except NoPort as none:
            raise WeightError(f"relays cannot meet: {none}") from none
        except OSError as error:
            raise WeightError(
                f"relays cannot meet at {host}: {error}; set weights.host to an address of the trainer's machine that "
                "the others reach"
            ) from error
        return port

    def join(self, meeting: Meeting, rank: int, host: str) -> None:
        """Be `rank` of a group, and of no other, once all of it are there. `host`: the address that this process speaks
        from. Raises PeerError, NcclError."""
        self.leave()
        store = self._store
        if rank > 0 or store is None:
            try:
                store = TCPStore(
                    meeting.host,
                    meeting.port,
                    is_master=False,
                    timeout=timedelta(seconds=self._still_s),
                    wait_for_workers=False,
                )
            except RuntimeError as error:
                words = " ".join(str(error).split())[:300]
                raise PeerError(f"the source's relay at {meeting.host}:{meeting.port}: {words}") from error
        group = PrefixStore(meeting.name, store), rank, meeting.size, host, self._still_s

        def wire() -> Wire:
            return NcclWire(*group, _device(meeting.devices[rank])) if meeting.devices else GlooWire(*group)

        self._line = Line(wire, rank, self._still_s)

    def leave(self) -> None:
        """The group."""
        if self._line is not None:
            self._line.close()
        self._line = None

    def look(self, address: str) -> Found:
        """What a trainer on this machine has published there."""
        source = self._source(address)
        offer = source.offer()
        before = [whole.version for whole in source.whole() if offer is not None and whole.version < offer.version]
        return Found(offer, next(iter(before), None))

    def send(self, journey: Journey, address: str) -> Sent:
        """As the first of the chain. Raises PeerError."""
        version, line = journey.manifest.version, self._of_group()
        source = self._source(address)
        there = {whole.version: whole for whole in source.whole()}
        read = [there.get(each) for each in (version, journey.base) if each is not None]
        slots = [each for each in read if each is not None]

        def is_whole() -> bool:
            return len(slots) == len(read) and all(each.stands() for each in slots)

        if not is_whole():
            self.leave()  # whoever waits for it hears of it
            return Sent(0, 0, overtaken=True)
        memory, base = slots[0].slot.memory, slots[1].slot.memory if len(slots) > 1 else None
        try:
            parts = chain.buckets(memory, base, summed=journey.summed, threads=chain.packers())
            sent, whole = chain.send(line, journey.order[1], parts, is_whole)
        except BaseException:
            self.leave()
            raise
        return Sent(len(memory) - HEADER, sent, overtaken=not whole)

    def take(self, journey: Journey) -> bool:
        """As one of the chain: whether the version is here now, whole; else the one before stays. Raises PeerError,
        WeightError."""
        line = self._of_group()
        place = journey.order.index(line.rank)
        to = journey.order[place + 1] if place + 1 < len(journey.order) else None
        try:
            base = self._base(journey.base)
            slot = self._slots.begin(journey.manifest)
            arrived = chain.take(line, journey.order[place - 1], to, slot.memory, base)
        except BaseException:
            self.leave()
            raise
        if arrived:
            self._slots.end(journey.manifest, journey.check)
        return arrived

    def _base(self, version: Version | None) -> Tensor | None:
        if version is None:
            return None
        slot = self._slots.whole(version)
        if slot is None:
            raise WeightError(f"{version} is not here, and what changed since was to come")
        return slot.memory

    def _source(self, address: str) -> ShmReceiver:
        """What it has mapped stays mapped; but a trainer has another address in each life."""
        if address not in self._sources:
            self._sources = {address: ShmReceiver(address)}
        return self._sources[address]

    def _of_group(self) -> Line:
        if self._line is None:
            raise PeerError("this relay is in no group; it has to be formed anew")
        return self._line


def _device(name: str) -> torch.device:
    """Raises NcclFault."""
    found = device_named(name)
    if found is None:
        raise NcclFault(f"this relay does not see the CUDA device {name}")
    return found
