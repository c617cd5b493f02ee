"""The receiving end of whoever takes versions from a relay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from torch import Tensor

from headrace.weights.plane import ALL, Manifest, Received, Share, WeightOffer, WeightReceiver
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
        return NearWorker(self, self._relays, worker)

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

    def receive_as(self, make: Callable[[Received], T], share: Share = ALL) -> T:
        """See `WeightReceiver.receive_as`."""
        return self._published.receive_as(make, share)


class NearWorker(WeightReceiver):
    """What is at the relay of one worker, or published, while it has none: workers that are made anew may be elsewhere
    than they were."""

    def __init__(self, published: OverRelays, relays: Relays, worker: str) -> None:
        self._published = published
        self._relays = relays
        self._worker = worker

    def latest(self) -> Version | None:
        """The newest that was at the relay; of one that had none yet the newest that there is."""
        rank = self._relays.rank_of(self._worker)
        return self._published.latest() if rank is None else self._relays.version_at(rank)

    def offer(self) -> WeightOffer | None:
        """See `WeightReceiver.offer`. Raises NotThereYet while the relay has none."""
        rank = self._relays.rank_of(self._worker)
        return self._published.offer() if rank is None else self._relays.offer_at(rank)

    def receive(self) -> tuple[Manifest, Mapping[str, Tensor]]:
        """See `WeightReceiver.receive`; on the machine where the worker is."""
        return self._now().receive()

    def received(self) -> Received:
        """As `receive`."""
        return self._now().received()

    def receive_as(self, make: Callable[[Received], T], share: Share = ALL) -> T:
        """As `receive`."""
        return self._now().receive_as(make, share)

    def _now(self) -> WeightReceiver:
        rank = self._relays.rank_of(self._worker)
        return self._published if rank is None else receiver_of(self._relays.offer_at(rank))
