"""The receiving end of whoever takes versions from a relay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from torch import Tensor

from headrace.weights.plane import Manifest, Received, WeightOffer, WeightReceiver
from headrace.weights.receiving import receiver_of
from headrace.weights.relay.relays import Relays
from headrace.weights.version import Version

T = TypeVar("T")


class OverRelays(WeightReceiver):
    """Of a trainer whose versions go on over relays: what is published, and `near` a worker what is at its relay.
    What is published is what relays told of it: whoever asks need not see the trainer's memory, if they do not receive
    themselves."""

    def __init__(self, published: WeightReceiver, relays: Relays) -> None:
        self._published = published
        self._relays = relays

    def near(self, worker: str) -> WeightReceiver:
        """See `WeightReceiver.near`."""
        rank = self._relays.rank_of(worker)
        return self if rank is None else AtRelay(self._relays, rank)

    def latest(self) -> Version | None:
        """See `WeightReceiver.latest`."""
        newest = self._relays.newest
        return None if newest is None else newest.version

    def offer(self) -> WeightOffer | None:
        """See `WeightReceiver.offer`."""
        return self._relays.newest

    def receive(self) -> tuple[Manifest, Mapping[str, Tensor]]:
        """See `WeightReceiver.receive`."""
        return self._published.receive()

    def received(self) -> Received:
        """See `WeightReceiver.received`."""
        return self._published.received()

    def receive_as(self, make: Callable[[Received], T]) -> T:
        """See `WeightReceiver.receive_as`."""
        return self._published.receive_as(make)


class AtRelay(WeightReceiver):
    """What is at one relay."""

    def __init__(self, relays: Relays, rank: int) -> None:
        self._relays = relays
        self._rank = rank

    def latest(self) -> Version | None:
        """The newest that was there, or of a relay that had none yet the newest that there is."""
        return self._relays.version_at(self._rank)

    def offer(self) -> WeightOffer | None:
        """See `WeightReceiver.offer`. Raises WeightError while the relay has none."""
        return self._relays.offer_at(self._rank)

    def receive(self) -> tuple[Manifest, Mapping[str, Tensor]]:
        """See `WeightReceiver.receive`; on the relay's machine."""
        return receiver_of(self._relays.offer_at(self._rank)).receive()

    def received(self) -> Received:
        """As `receive`."""
        return receiver_of(self._relays.offer_at(self._rank)).received()

    def receive_as(self, make: Callable[[Received], T]) -> T:
        """As `receive`."""
        return receiver_of(self._relays.offer_at(self._rank)).receive_as(make)
