"""The receiving end of whatever transport an offer names."""

from __future__ import annotations

from headrace.weights.disk import DiskReceiver
from headrace.weights.in_process import memory_receiver
from headrace.weights.plane import WeightError, WeightOffer, WeightReceiver
from headrace.weights.shm import ShmReceiver


def receiver_of(offer: WeightOffer) -> WeightReceiver:
    """Raises WeightError for a transport that is none, or that does not reach this process."""
    match offer.transport:
        case "memory":
            return memory_receiver(offer.address)
        case "shm":
            return ShmReceiver(offer.address)
        case "disk":
            return DiskReceiver(offer.address)
    raise WeightError(f"{offer.version} is offered by {offer.transport!r}, which is no transport")
