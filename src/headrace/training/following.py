"""Receiving weights of a trainer that may be made anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from torch import Tensor

from headrace.weights.plane import ALL, Manifest, Received, Share, WeightOffer, WeightReceiver
from headrace.weights.receiving import receiver_at
from headrace.weights.version import Version

T = TypeVar("T")


class Following(WeightReceiver):
    """Receives from where the weights are now: a trainer that was made anew publishes in another place."""

    def __init__(self, plane: Callable[[], tuple[str, str]]) -> None:
        """`plane`: transport and address."""
        self._plane = plane
        self._of: tuple[str, str] | None = None
        self._receiver: WeightReceiver | None = None

    def latest(self) -> Version | None:
        """See `WeightReceiver.latest`."""
        return self._now().latest()

    def offer(self) -> WeightOffer | None:
        """See `WeightReceiver.offer`."""
        return self._now().offer()

    def receive(self) -> tuple[Manifest, Mapping[str, Tensor]]:
        """See `WeightReceiver.receive`."""
        return self._now().receive()

    def receive_as(self, make: Callable[[Received], T], share: Share = ALL) -> T:
        """See `WeightReceiver.receive_as`."""
        return self._now().receive_as(make, share)

    def received(self) -> Received:
        """See `WeightReceiver.received`."""
        return self._now().received()

    def _now(self) -> WeightReceiver:
        plane, receiver = self._plane(), self._receiver
        if receiver is None or self._of != plane:
            receiver = self._receiver = receiver_at(*plane)
            self._of = plane
        return receiver
