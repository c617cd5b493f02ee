"""A relay of the weight plane as a worker: `weights/relay/relays.py` is how it is spoken to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from headrace.runtime.process.memory_here import MemoryHere
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host
from headrace.weights.addresses import own_address
from headrace.weights.devices import nccl_devices
from headrace.weights.relay.journey import RELAY_TYPES, Found, Journey, Meeting, Plane, Sent
from headrace.weights.relay.line import STILL_S
from headrace.weights.relay.relay import Relay
from headrace.weights.seen import CPU, Seen, seen_here
from headrace.weights.transport import of_this_life


@dataclass(frozen=True, slots=True)
class RelaySpec:
    """From which a relay makes itself."""

    memory: str
    """A folder in memory for what it keeps, where it sees that; else it has one of its own."""
    still_s: float = STILL_S
    """That one bucket may take from one relay to the next."""


class RelayWorker:
    """In a process of its own: whoever waits for a peer in gloo waits for up to a deadline, whatever happens."""

    kind: ClassVar[str] = "relay"
    types: ClassVar[WireTypes] = RELAY_TYPES.with_types(WireTypes({"relay_spec": RelaySpec}))

    def __init__(self, spec: RelaySpec, host: Host) -> None:
        if host.threads is not None:
            torch.set_num_threads(host.threads)
        self._memory = MemoryHere(spec.memory)
        folder = self._memory.folder / str(host.rank)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._relay = Relay(of_this_life("shm", folder), spec.still_s)

    def sees(self) -> Seen:
        return seen_here(CPU)

    def plane(self, host: str) -> Plane:
        """Where what it keeps is found, the address of this machine as one at `host` sees it, and its devices. Raises
        OSError."""
        return Plane(self._relay.transport, self._relay.address, own_address(host), nccl_devices())

    def listen(self, host: str) -> int:
        """See `Relay.listen`."""
        return self._relay.listen(host)

    def join(self, meeting: Meeting, rank: int, host: str) -> None:
        """See `Relay.join`."""
        self._relay.join(meeting, rank, host)

    def look(self, address: str) -> Found:
        """See `Relay.look`."""
        return self._relay.look(address)

    def send(self, journey: Journey, address: str) -> Sent:
        """See `Relay.send`."""
        return self._relay.send(journey, address)

    def take(self, journey: Journey) -> bool:
        """See `Relay.take`."""
        return self._relay.take(journey)
