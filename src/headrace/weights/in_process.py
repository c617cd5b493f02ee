"""Weights within one process: each publication is an immutable snapshot, freed when its last reader lets go.

No checksum is computed: the bytes go nowhere, and for weights on a device it would cost more than the publication.
What can go wrong is a reader that writes into a snapshot, and torch counts such writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType
from weakref import WeakValueDictionary

import torch

from headrace.weights.copies import copy_each
from headrace.weights.manifest import build_manifest, named_once, require_newer
from headrace.weights.plane import (
    Manifest,
    Received,
    Snapshot,
    WeightError,
    WeightOffer,
    WeightPublisher,
    WeightReceiver,
)
from headrace.weights.swap_check import SwapCheck
from headrace.weights.version import Version


@dataclass(frozen=True, slots=True)
class _Published:
    manifest: Manifest
    tensors: Mapping[str, torch.Tensor]
    writes: tuple[int, ...]
    """How often torch had written to each tensor when it was published."""
    check: SwapCheck | None


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Newest:
    """All that both ends share: replaced in one assignment, so a reader sees one snapshot or the other."""

    snapshot: _Published | None = None
    address: str | None = None

    @property
    def version(self) -> Version | None:
        return self.snapshot.manifest.version if self.snapshot else None


_BY_ADDRESS: WeakValueDictionary[str, _Newest] = WeakValueDictionary()
_numbers = count()


def _address(newest: _Newest) -> str:
    """By which a receiver of this process finds it, while the publisher is there."""
    if newest.address is None:
        newest.address = str(next(_numbers))
        _BY_ADDRESS[newest.address] = newest
    return newest.address


def memory_receiver(address: str) -> MemoryReceiver:
    """Of a publisher in this process. Raises WeightError if there is none of the address."""
    newest = _BY_ADDRESS.get(address)
    if newest is None:
        raise WeightError(
            "these weights were published in the memory of another process; use the transport shm or disk"
        )
    return MemoryReceiver(newest)


class MemoryPublisher(WeightPublisher):
    """Clones the tensors on the device where they are."""

    transport = "memory"

    def __init__(self) -> None:
        self._newest = _Newest()

    def snapshot(
        self, version: Version, tensors: Iterable[tuple[str, torch.Tensor]], check: SwapCheck | None = None
    ) -> Snapshot:
        """See `WeightPublisher.snapshot`."""
        require_newer(version, self._newest.version)
        found = dict(named_once(version, tensors))
        with torch.inference_mode(False):  # a tensor made in inference mode does not count writes
            copies = {
                name: torch.empty_like(tensor, requires_grad=False, memory_format=torch.contiguous_format)
                for name, tensor in found.items()
            }
            copy_each((copies[name], tensor) for name, tensor in found.items())
        for device in dict.fromkeys(tensor.device for tensor in copies.values() if tensor.is_cuda):
            torch.cuda.current_stream(device).synchronize()
        return Snapshot(build_manifest(version, copies, checksums=False), MappingProxyType(copies), check)

    def send(self, snapshot: Snapshot) -> Manifest:
        """See `WeightPublisher.send`: the journey is one assignment."""
        require_newer(snapshot.version, self._newest.version)
        writes = tuple(tensor._version for tensor in snapshot.tensors.values())
        self._newest.snapshot = _Published(snapshot.manifest, snapshot.tensors, writes, snapshot.check)
        return snapshot.manifest

    @property
    def address(self) -> str:
        return _address(self._newest)

    def receiver(self) -> MemoryReceiver:
        return MemoryReceiver(self._newest)


class MemoryReceiver(WeightReceiver):
    """Hands out the newest snapshot itself, on the publisher's device, without a copy."""

    def __init__(self, newest: _Newest) -> None:
        self._newest = newest

    def latest(self) -> Version | None:
        return self._newest.version

    def offer(self) -> WeightOffer | None:
        newest = self._newest.snapshot
        if newest is None:
            return None
        return WeightOffer(newest.manifest.version, "memory", _address(self._newest), newest.manifest, newest.check)

    def receive(self) -> tuple[Manifest, Mapping[str, torch.Tensor]]:
        received = self.received()
        return received.manifest, received.tensors

    def received(self) -> Received:
        """See `WeightReceiver.received`."""
        snapshot = self._newest.snapshot
        if snapshot is None:
            raise WeightError("no weights were published yet; publish the initial version first")
        for (name, tensor), writes in zip(snapshot.tensors.items(), snapshot.writes, strict=True):
            if tensor._version != writes:
                raise WeightError(
                    f"tensor {name!r} of {snapshot.manifest.version} was written to by a receiver; received "
                    "tensors are read-only: copy them"
                )
            if tensor.is_cuda:
                # The allocator must not reuse the snapshot's memory while this thread's stream reads it.
                tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return Received(snapshot.manifest, snapshot.tensors, lasts=True, check=snapshot.check)
