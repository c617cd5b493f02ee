"""The two ends of the weight plane, whatever the transport."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from headrace.weights.version import Version

if TYPE_CHECKING:
    import torch


T = TypeVar("T")


class WeightError(RuntimeError):
    """A publication could not be made, or what was received is not whole, not newer, or of a left branch."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    name: str
    """Hugging Face parameter name."""
    shape: tuple[int, ...]
    dtype: str
    """As `float32`, `bfloat16`."""
    checksum: int | None
    """CRC-32 of the contiguous little-endian bytes; None if they never leave the process's memory."""


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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Weights as they were at one moment: nobody changes them any more."""

    manifest: Manifest
    """Without checksums."""
    tensors: Mapping[str, torch.Tensor]

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


class WeightPublisher(Protocol):
    """Publishes in two moves: one copy, for which the trainer rests, and its journey, beside the next batch. The newest
    whole version can be received until a newer one is whole."""

    transport: str
    """As `disk`."""

    @property
    def address(self) -> str:
        """With the transport, what a receiver is made of, in whatever process it reaches."""
        ...

    def snapshot(self, version: Version, tensors: Iterable[tuple[str, torch.Tensor]]) -> Snapshot:
        """One copy of `tensors`; once it returns, the caller may change them. To be sent before the next is taken.

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

    def receive(self) -> tuple[Manifest, Mapping[str, torch.Tensor]]:
        """The newest whole version, verified against its manifest. The tensors are read-only for the caller.

        Blocking (call it on a compute lane). Raises WeightError if it is damaged or none was published.
        """
        ...

    def receive_as(self, make: Callable[[Received], T]) -> T:
        """What `make` makes of the newest whole version: with one copy less than by `receive`, for who copies or
        converts the tensors anyway. It may be called again, where a version was overtaken. Blocking. Raises as
        `receive`, and what `make` raises."""
        return make(Received(*self.receive(), lasts=True))
