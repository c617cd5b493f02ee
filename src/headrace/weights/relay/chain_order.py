"""In which order a version goes from relay to relay: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def chain_order(ranks: Sequence[int], hosts: Mapping[int, str], source: str) -> list[int]:
    """The relays `ranks` behind a source at the address `source`: those at its address first, then one address after
    another, so that a version crosses the network once for each machine. Addresses come in the order of their first
    relay in `ranks`, and relays of one in theirs. `hosts`: the address of each."""
    first: dict[str, int] = {source: -1}
    for place, rank in enumerate(ranks):
        first.setdefault(hosts[rank], place)
    return sorted(ranks, key=lambda rank: first[hosts[rank]])
