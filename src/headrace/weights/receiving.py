"""The receiving end of whatever transport an offer names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from headrace.weights.cuda_ipc import CudaIpcReceiver
from headrace.weights.disk import DiskReceiver
from headrace.weights.in_process import memory_receiver
from headrace.weights.plane import (
    ALL,
    Manifest,
    Received,
    Share,
    WeightError,
    WeightOffer,
    WeightReceiver,
)
from headrace.weights.shm import ShmReceiver
from headrace.weights.version import Version

T = TypeVar("T")


def receiver_of(offer: WeightOffer) -> WeightReceiver:
    """Raises WeightError for a transport that is none, or that does not reach this process."""
    return HeldTo(offer, receiver_at(offer.transport, offer.address))


class HeldTo(WeightReceiver):
    """The receiving end of an offer: takes that version or a newer one, and of that version what its manifest says."""

    def __init__(self, offer: WeightOffer, receiver: WeightReceiver) -> None:
        self._offer = offer
        self._receiver = receiver

    def latest(self) -> Version | None:
        """See `WeightReceiver.latest`."""
        return self._receiver.latest()

    def offer(self) -> WeightOffer | None:
        """See `WeightReceiver.offer`."""
        return self._receiver.offer()

    def receive(self) -> tuple[Manifest, Mapping[str, torch.Tensor]]:
        """See `WeightReceiver.receive`."""
        received = self.received()
        return received.manifest, received.tensors

    def received(self) -> Received:
        """See `WeightReceiver.received`."""
        received = self._receiver.received()
        self._require(received.manifest)
        return received

    def receive_as(self, make: Callable[[Received], T], share: Share = ALL) -> T:
        """See `WeightReceiver.receive_as`."""

        def held(received: Received) -> T:
            self._require(received.manifest)
            return make(received)

        return self._receiver.receive_as(held, share)

    def _require(self, manifest: Manifest) -> None:
        offer = self._offer
        if manifest.version < offer.version:
            raise WeightError(
                f"{offer.version} was offered, and {manifest.version} is the newest at {offer.address}; publish again"
            )
        if manifest.version == offer.version and offer.manifest is not None:
            told, found = (
                [(each.name, tuple(each.shape), each.dtype) for each in one.entries]
                for one in (offer.manifest, manifest)
            )
            if told != found:
                odd = next((one for one in (*told, *found) if one not in told or one not in found), told[:1])
                raise WeightError(f"{offer.version} is not what was offered: {odd} differs; publish it again")


def receiver_at(transport: str, address: str) -> WeightReceiver:
    """Of the publisher with this transport and address. Raises WeightError, as `receiver_of`."""
    match transport:
        case "memory":
            return memory_receiver(address)
        case "shm":
            return ShmReceiver(address)
        case "cuda_ipc":
            return CudaIpcReceiver(address)
        case "disk":
            return DiskReceiver(address)
    raise WeightError(f"weights are offered by {transport!r}, which is no transport")
