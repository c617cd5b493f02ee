"""Which rank computes with which rows: pure."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.models.packing import plan_microbatches


def shares(lengths: Sequence[int], ranks: int, max_tokens: int) -> list[list[list[int]]]:
    """Of each rank its micro-batches, each of places in `lengths`, ascending.

    Each sample is whole, and in one micro-batch of at most `max_tokens` tokens (or alone in one); neighbours stay
    together as far as that goes. Micro-batches go to whoever has fewest tokens, the largest first.
    """
    share = -(-sum(lengths) // ranks)
    limit = min(max_tokens, max([share, *lengths])) if lengths else max_tokens
    parts = plan_microbatches(lengths, max(limit, 1))
    sizes = [sum(lengths[place] for place in part) for part in parts]
    found: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for number in sorted(range(len(parts)), key=lambda number: -sizes[number]):
        rank = loads.index(min(loads))
        found[rank].append(number)
        loads[rank] += sizes[number]
    return [[parts[number] for number in sorted(numbers)] for numbers in found]
