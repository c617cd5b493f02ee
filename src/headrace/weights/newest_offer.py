"""What is offered by now where an offer leads, for who takes it late. Without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.weights import swap_check
from headrace.weights.disk_format import CHECK, name_of, pointed
from headrace.weights.plane import Received, WeightError, WeightOffer, WeightReceiver
from headrace.weights.slot_format import check_file, whole_slots
from headrace.weights.swap_check import SwapCheck
from headrace.weights.version import Version

_TRIES = 3
"""Of a reader that was overtaken."""


class Offered(WeightReceiver):
    """An offer that somebody else receives, or what is newer where that leads."""

    def __init__(self, offer: WeightOffer) -> None:
        self._offer = offer

    def latest(self) -> Version | None:
        """See `WeightReceiver.latest`."""
        return self._offer.version

    def offer(self) -> WeightOffer | None:
        """See `WeightReceiver.offer`. Raises WeightError."""
        return newest_offer(self._offer)

    def receive(self) -> Any:
        raise NotImplementedError

    def received(self) -> Received:
        raise NotImplementedError


def newest_offer(offer: WeightOffer) -> WeightOffer:
    """Of the newest whole version at the offer's address: that of the offer, or a newer one. Where a server takes none
    from, the offer itself. Raises WeightError where nothing as new is there any more."""
    folder = Path(offer.address)
    match offer.transport:
        case "shm":
            found = _settled(lambda: _in_slots(folder))
        case "disk":
            found = _settled(lambda: _in_folder(folder))
        case _:
            return offer
    if found is None or found[0] < offer.version:
        newest = "none is" if found is None else f"{found[0]} is the newest"
        raise WeightError(f"{offer.version} was offered, and {newest} at {offer.address}; publish again")
    version, check = found
    if version == offer.version:
        return offer
    # Of slots all versions have one layout; in a folder each has a manifest of its own, which its reader reads.
    manifest = None if offer.manifest is None or offer.transport == "disk" else replace(offer.manifest, version=version)
    return replace(offer, version=version, manifest=manifest, swap_check=check)


Found = tuple[Version, SwapCheck | None] | None


def _settled(read: Callable[[], Found]) -> Found:
    for left in reversed(range(_TRIES)):
        try:
            return read()
        except (OSError, ValueError) as error:  # perhaps it was overtaken meanwhile
            if not left:
                raise WeightError(f"what is published cannot be read: {error}; it is tried again") from error
    return None


def _in_slots(folder: Path) -> Found:
    whole = whole_slots(folder)
    if not whole:
        return None
    check = swap_check.from_json(check_file(folder, whole[0].generation).read_bytes()) if whole[0].has_check else None
    if whole[0] not in whole_slots(folder):
        raise ValueError(f"{whole[0].version} was overtaken")
    return whole[0].version, check


def _in_folder(folder: Path) -> Found:
    version = pointed(folder)
    if version is None:
        return None
    made = folder / name_of(version)
    check = swap_check.from_json((made / CHECK).read_bytes()) if (made / CHECK).is_file() else None
    if pointed(folder) != version:
        raise ValueError(f"{version} was overtaken")
    return version, check
