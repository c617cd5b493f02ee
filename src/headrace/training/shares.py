"""Which rank computes with which rows: pure."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.models.packing import plan_microbatches


def shares(
    lengths: Sequence[int], ranks: int, max_tokens: int, had: Sequence[int] | None = None
) -> list[list[list[int]]]:
    """Of each rank its micro-batches, each of places in `lengths`, ascending.

    Each sample is whole, and in one micro-batch of at most `max_tokens` tokens (or alone in one); neighbours stay
    together as far as that goes. Micro-batches go to whoever has fewest tokens, the largest first. `had`: tokens that
    each rank has had before, none unless given.
    """
    share = -(-sum(lengths) // ranks)
    limit = min(max_tokens, max([share, *lengths])) if lengths else max_tokens
    parts = plan_microbatches(lengths, max(limit, 1))
    sizes = [sum(lengths[place] for place in part) for part in parts]
    found: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks if had is None else list(had)
    for number in sorted(range(len(parts)), key=lambda number: -sizes[number]):
        rank = loads.index(min(loads))
        found[rank].append(number)
        loads[rank] += sizes[number]
    return [[parts[number] for number in sorted(numbers)] for numbers in found]


class Loads:
    """Tokens that each of some ranks has had, by what for: what several calls share out is even over all of them."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._of: dict[str, list[int]] = {}

    def had(self, purpose: str) -> Sequence[int]:
        return self._of.get(purpose, [0] * self._ranks)

    def add(self, purpose: str, parts: Sequence[Sequence[Sequence[int]]], lengths: Sequence[int]) -> None:
        """What `shares` gave of these lengths."""
        made = [sum(lengths[place] for places in part for place in places) for part in parts]
        self._of[purpose] = [before + more for before, more in zip(self.had(purpose), made, strict=True)]

    def forget(self) -> None:
        self._of.clear()
