"""The receiving end of whatever transport an offer names."""

from __future__ import annotations

from headrace.weights.disk import DiskReceiver
from headrace.weights.in_process import memory_receiver
from headrace.weights.plane import WeightError, WeightOffer, WeightReceiver
from headrace.weights.shm import ShmReceiver


def receiver_of(offer: WeightOffer) -> WeightReceiver:
    """Raises WeightError for a transport that is none, or that does not reach this process."""
    return receiver_at(offer.transport, offer.address)


def receiver_at(transport: str, address: str) -> WeightReceiver:
    """Of the publisher with this transport and address. Raises WeightError, as `receiver_of`."""
    match transport:
        case "memory":
            return memory_receiver(address)
        case "shm":
            return ShmReceiver(address)
        case "disk":
            return DiskReceiver(address)
    raise WeightError(f"weights are offered by {transport!r}, which is no transport")
