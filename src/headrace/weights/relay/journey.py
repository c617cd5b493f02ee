"""What relays are told, and answer: plain data."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.runtime.wire.wire_types import WireTypes
from headrace.weights.offer_types import WEIGHT_TYPES
from headrace.weights.plane import Manifest, WeightOffer
from headrace.weights.swap_check import SwapCheck
from headrace.weights.version import Version

SOURCE = 0
"""Rank of the source's relay, and its place in every group."""


@dataclass(frozen=True, slots=True)
class Plane:
    """Where a relay is."""

    transport: str
    address: str
    """With the transport, what a receiver of what it keeps is made of."""
    host: str
    """The address that it speaks from to other relays."""
    devices: tuple[str, ...] = ()
    """By which it can speak NCCL."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the relays of a group find each other."""

    host: str
    """Address of the source's machine."""
    port: int
    name: str
    """Of the group, before its keys in the store."""
    size: int
    devices: tuple[str, ...] = ()
    """Of each rank, where they speak by NCCL; none where they speak by gloo."""


@dataclass(frozen=True, slots=True)
class Journey:
    """One version along a chain of relays."""

    manifest: Manifest
    order: tuple[int, ...]
    """Ranks in the group. The first is the source's."""
    base: Version | None
    """That all of them have, where only what changed is sent."""
    summed: bool
    """Whether buckets that go whole have checksums; what changed always has."""
    check: SwapCheck | None


@dataclass(frozen=True, slots=True)
class Found:
    """What there is to be sent."""

    offer: WeightOffer | None
    """The newest version; None before the first."""
    before: Version | None
    """The one that it can be compared with."""


@dataclass(frozen=True, slots=True)
class Sent:
    size: int
    """Bytes of the version, as they lie in a slot."""
    sent: int
    """Bytes that left the source, headers apart."""
    overtaken: bool
    """Nobody takes what came: a newer one was written there meanwhile."""


RELAY_TYPES = WEIGHT_TYPES.with_types(
    WireTypes({"plane": Plane, "meeting": Meeting, "journey": Journey, "found": Found, "sent": Sent})
)
