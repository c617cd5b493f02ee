"""The two ends of the weight plane, whatever the transport."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.weights.version import Version

if TYPE_CHECKING:
    import torch


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
class WeightOffer:
    """A version that can be received, in whatever process: plain data."""

    version: Version
    """The newest whole one when the offer was made; a newer one may be received instead."""
    transport: str
    """As `disk`."""
    address: str
    """What a receiver of the transport is made of."""


class WeightPublisher(Protocol):
    def publish(self, version: Version, tensors: Iterable[tuple[str, torch.Tensor]]) -> Manifest:
        """Snapshot `tensors` as `version`; once it returns, the caller may change them.

        Blocking (call it on a compute lane). Raises WeightError unless `version` is newer than the last.
        """

    def receiver(self) -> WeightReceiver:
        """A new receiving end. In another process, it is built from the transport's address instead."""


class WeightReceiver(Protocol):
    def latest(self) -> Version | None:
        """Newest whole version published, or None before the first. Never blocks."""

    def offer(self) -> WeightOffer | None:
        """By which another process receives the newest version; None before the first. Never blocks."""

    def receive(self) -> tuple[Manifest, Mapping[str, torch.Tensor]]:
        """The newest whole version, verified against its manifest. The tensors are read-only for the caller.

        Blocking (call it on a compute lane). Raises WeightError if it is damaged or none was published.
        """
