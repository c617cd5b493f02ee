"""The two ends of the weight plane, whatever the transport."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Protocol, TypeVar

from headrace.config.values.dtypes import ITEM_BYTES
from headrace.errors import HeadraceError
from headrace.runtime.progress import mark, rest
from headrace.weights.swap_check import SwapCheck
from headrace.weights.version import Version

if TYPE_CHECKING:
    import torch


T = TypeVar("T")

BUCKET_BYTES = 64 * 2**20
"""Large enough that what a bucket costs besides its bytes is nothing, small beside any model."""


class WeightError(HeadraceError, RuntimeError):
    """A publication could not be made, or what was received is not whole, not newer, or of a left branch."""


class NotThereYet(WeightError):
    """What was published is not where a receiver takes it from. It comes there by itself."""


@dataclass(frozen=True, slots=True)
class Share:
    """Of those that take a version together, each a part of its tensors, the one of this number. What each of them
    would look at for damage, they share out, where they can be taken without."""

    number: int
    of: int

    def has(self, place: int) -> bool:
        """Whether the tensor at this place of the manifest is in it."""
        return place % self.of == self.number


ALL = Share(0, 1)
"""Of who takes it alone."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    name: str
    """Hugging Face parameter name."""
    shape: tuple[int, ...]
    dtype: str
    """As `float32`, `bfloat16`."""
    checksum: int | None
    """CRC-32 of the contiguous little-endian bytes; None if they never leave the process's memory."""

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape) * ITEM_BYTES.get(self.dtype, 1)


@dataclass(frozen=True, slots=True)
class Manifest:
    version: Version
    entries: tuple[TensorEntry, ...]


@dataclass(frozen=True, slots=True)
class Received:
    """A whole version, while somebody makes theirs of it."""

    manifest: Manifest
    tensors: Mapping[str, torch.Tensor]
    """Read-only."""
    lasts: bool
    """Whether the tensors may be kept; else they are where the next but one version is written."""
    check: SwapCheck | None = None
    """None where nothing is converted on the way."""

    def buckets(self, limit: int = BUCKET_BYTES) -> Iterator[dict[str, torch.Tensor]]:
        """All tensors in the manifest's order, so many at a time that they have `limit` bytes at most, or are one: who
        loads them in place needs room for one bucket beside its own weights."""
        bucket: dict[str, torch.Tensor] = {}
        size = 0
        for entry in self.manifest.entries:
            if bucket and size + entry.size > limit:
                yield bucket
                bucket, size = {}, 0
            bucket[entry.name] = self.tensors[entry.name]
            size += entry.size
        if bucket:
            yield bucket

    def load(self, take: Callable[[Mapping[str, torch.Tensor]], None], limit: int = BUCKET_BYTES) -> None:
        """Have `take` take them, bucket by bucket."""
        for bucket in self.buckets(limit):
            mark("chunk")
            take(bucket)
        rest()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Weights as they were at one moment: nobody changes them any more."""

    manifest: Manifest
    """Without checksums."""
    tensors: Mapping[str, torch.Tensor]
    check: SwapCheck | None = None

    @property
    def version(self) -> Version:
        return self.manifest.version


@dataclass(frozen=True, slots=True)
class WeightOffer:
    """A version that can be received, in whatever process: plain data."""

    version: Version
    """The newest whole one when the offer was made; a newer one may be received instead."""
    transport: str
    """As `disk`."""
    address: str
    """What a receiver of the transport is made of."""
    manifest: Manifest | None = None
    """Of that version; checksums only where bytes travel."""
    swap_check: SwapCheck | None = None


@dataclass(frozen=True, slots=True)
class Departure:
    """How a version left."""

    transport: str
    size: int
    """Bytes."""
    seconds: float
    """For the copy, and for having it received."""
    of_others: int = 0
    """Bytes of it that are of ranks which do not see the memory that it was written into."""
    sent: int = 0
    """Bytes that these sent for them."""


class WeightPublisher(Protocol):
    """Publishes in two moves: one copy, for which the trainer rests, and its journey, beside the next batch. The newest
    whole version can be received until a newer one is whole."""

    transport: str
    """As `disk`."""

    @property
    def address(self) -> str:
        """With the transport, what a receiver is made of, in whatever process it reaches."""
        ...

    def snapshot(
        self, version: Version, tensors: Iterable[tuple[str, torch.Tensor]], check: SwapCheck | None = None
    ) -> Snapshot:
        """One copy of `tensors`; once it returns, the caller may change them. To be sent before the next is taken.
        `check`: what was computed with them, for those who receive them.

        Blocking (on the lane of whoever changes the tensors). Raises WeightError unless `version` is newer than the
        last.
        """
        ...

    def send(self, snapshot: Snapshot) -> Manifest:
        """Have it received from now on, whole. Blocking (on any lane). Raises WeightError; then the version before
        stays."""
        ...

    def publish(self, version: Version, tensors: Iterable[tuple[str, torch.Tensor]]) -> Manifest:
        """Both moves at once. Blocking."""
        return self.send(self.snapshot(version, tensors))

    def receiver(self) -> WeightReceiver:
        """A new receiving end. In another process, it is built from its offer instead (`weights.receiving`)."""
        ...


class WeightReceiver(Protocol):
    def latest(self) -> Version | None:
        """Newest whole version published, or None before the first. Never blocks."""

    def offer(self) -> WeightOffer | None:
        """By which another process receives the newest version; None before the first. Never blocks."""

    def near(self, worker: str) -> WeightReceiver:
        """The same, as it is for the worker of this name: what is published may be nearer to some than to others."""
        return self

    def receive(self) -> tuple[Manifest, Mapping[str, torch.Tensor]]:
        """The newest whole version, verified against its manifest. The tensors are read-only for the caller.

        Blocking (call it on a compute lane). Raises WeightError if it is damaged or none was published.
        """
        ...

    def receive_as(self, make: Callable[[Received], T], share: Share = ALL) -> T:
        """What `make` makes of the newest whole version: with one copy less than by `receive`, for who copies or
        converts the tensors anyway. It may be called again, where a version was overtaken. With a `share` no more has
        to be looked at for damage: the version is whole once this has returned for all of them. Blocking. Raises as
        `receive`, and what `make` raises."""
        return make(self.received())

    def received(self) -> Received:
        """The newest whole version, as `receive`."""
        return Received(*self.receive(), lasts=True)

    def receive_buckets(
        self,
        take: Callable[[Mapping[str, torch.Tensor]], None],
        limit: int = BUCKET_BYTES,
        *,
        begin: Callable[[Manifest], None] = lambda manifest: None,
        share: Share = ALL,
    ) -> Received:
        """Have `take` load the newest whole version in place, bucket by bucket; from the first bucket again, where a
        version was overtaken. `begin` is called before, and may refuse it. What was loaded is of one version only once
        this returns; with a `share`, once it has for all of them (`receive_as`). Blocking. Raises as `receive`, and
        what the two raise."""

        def load(received: Received) -> Received:
            begin(received.manifest)
            received.load(take, limit)
            return received

        return self.receive_as(load, share)
