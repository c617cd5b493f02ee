"""Whose turn it is: slots are shared evenly among clients, whatever each of them has asked for.

A client is a path, from the widest to the narrowest (`GenerateRequest.client`): at each level, whoever has the fewest
sequences running goes first. Sequences of one client go in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Protocol, TypeVar

Client = tuple[str, ...]


class Asked(Protocol):
    """What is shared out: the sequence of one request."""

    @property
    def client(self) -> Client: ...

    @property
    def length(self) -> int: ...


S = TypeVar("S", bound=Asked)


def fair_order(waiting: Sequence[S], running: Iterable[S]) -> list[S]:
    """Those that wait, in the order in which they get the slots that come free, if none of those that run ends."""
    if all(one.client == waiting[0].client for one in waiting):
        return list(waiting)
    have = _shares(running)
    place = {id(one): number for number, one in enumerate(waiting)}
    deepest = max(len(one.client) for one in waiting)

    def order(members: Sequence[S], level: int) -> Sequence[S]:
        if level > deepest or len(members) == 1:
            return members
        groups: dict[Client, list[S]] = {}
        for one in members:
            groups.setdefault(one.client[:level], []).append(one)
        # The n-th of a group gets its slot when the group has n - 1 more than now.
        turns = [
            (have[client] + turn, place[id(one)], one)
            for client, group in groups.items()
            for turn, one in enumerate(order(group, level + 1))
        ]
        return [one for _, _, one in sorted(turns, key=itemgetter(0, 1))]

    return list(order(waiting, 1))


def to_give_way(waiting: Iterable[S], running: Sequence[S]) -> list[int]:
    """Places in `running` to be freed, where all slots are taken: one for each client that has nothing running while
    another beside it has two or more. The one with the most gives way, and of its sequences the shortest, as that is
    the cheapest to compute again. So nobody waits for the end of somebody else's sequence, unless there are more
    clients than slots.
    """
    have = _shares(running)
    crowded = {prefix[:-1] for prefix, count in have.items() if count > 1}
    gone: list[int] = []
    for client in dict.fromkeys(one.client for one in waiting):
        starving = next((prefix for prefix in _prefixes(client) if have[prefix] == 0), None)
        if starving is None or starving[:-1] not in crowded:
            continue
        level = len(starving) or 1
        beside = [
            ([-have[prefix] for prefix in _prefixes(other.client)[level - 1 :]], other.length, place)
            for place, other in enumerate(running)
            if place not in gone and other.client[: level - 1] == starving[: level - 1]
        ]
        if not beside or min(beside)[0][0] > -2:
            crowded.discard(starving[:-1])
            continue
        *_, place = min(beside)
        gone.append(place)
        have.subtract(_prefixes(running[place].client))
        have.update(_prefixes(client))
    return gone


def gives_way(running: Sequence[S]) -> int:
    """The place in `running` to be freed where there is no room for all: of the client with the most, and there of the
    request with the most, the shortest; the last of several. So the longest of all stays to the last."""
    have = _shares(running)
    return min(
        range(len(running)),
        key=lambda place: (
            [-have[prefix] for prefix in _prefixes(running[place].client)],
            running[place].length,
            -place,
        ),
    )


def _shares(running: Iterable[Asked]) -> Counter[Client]:
    """Sequences of each client, and of all below it."""
    return Counter(prefix for one in running for prefix in _prefixes(one.client))


def _prefixes(client: Client) -> list[Client]:
    return [client[:level] for level in range(1, max(len(client), 1) + 1)]
