"""What the time of the trainer and of the engines went to, as shares that add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from headrace.observe import spent
from headrace.observe.record import Totals

SMALL = 0.005
"""Rounds to nothing: part of `other`."""
_WORK = (spent.TRAINS, spent.COMPUTES, spent.SCORES, spent.SWAPS, spent.PUBLISHES, spent.CHECKPOINTS, spent.CHANGES)


@dataclass(frozen=True, slots=True)
class Share:
    """How a side spent its time."""

    side: str
    """`trainer` or `engines`."""
    what: str
    """It did or waited for, see `headrace.observe.spent`."""
    is_wait: bool
    share: float
    """Of the time, 0 to 1."""
    seconds: float


def shares(totals: Totals) -> tuple[Share, ...]:
    """The trainer's first; of each side its work, what it waited for, the longest first, and the rest. Those of a side
    add up to 1. None of a record that does not have them."""
    return (*_of_side("trainer", totals.trainer_s), *_of_side("engines", totals.engines_s))


def of_side(found: Sequence[Share], side: str) -> list[Share]:
    return [share for share in found if share.side == side]


def at_most(found: Sequence[Share], lines: int) -> list[Share]:
    """So many of them at most: the smallest of all go into their side's rest. Where there is room for less than the
    largest work and the rest of each side, rests are left out."""
    kept = list(found)
    while len(kept) > lines:
        # The first of a side, its work, and its rest stay.
        small = [share for before, share in pairwise(kept) if before.side == share.side and share.what != spent.OTHER]
        if not small:
            break
        kept = _without(kept, min(small, key=lambda share: share.share))
    if len(kept) > lines:
        kept = [share for share in kept if share.what != spent.OTHER]
    return kept[:lines]


def _of_side(side: str, seconds: Mapping[str, float]) -> list[Share]:
    whole = sum(seconds.values())
    if whole <= 0:
        return []
    found = [
        Share(side, name.removeprefix(spent.WAITS), name.startswith(spent.WAITS), each / whole, each)
        for name, each in seconds.items()
    ]
    for small in [share for share in found if share.share < SMALL and share.what != spent.OTHER]:
        found = _without(found, small)
    # A rest that rounds to nothing is left out, and the others are all there is.
    shown = [share for share in found if share.share >= SMALL]
    all_shown = sum(share.share for share in shown)
    return sorted((replace(share, share=share.share / all_shown) for share in shown), key=_place)


def _without(found: Sequence[Share], gone: Share) -> list[Share]:
    """All but this one, which its side's rest takes in."""
    rest = next((share for share in found if share.side == gone.side and share.what == spent.OTHER), None)
    more = 0.0 if rest is None else rest.share
    seconds = 0.0 if rest is None else rest.seconds
    taken = Share(gone.side, spent.OTHER, False, more + gone.share, seconds + gone.seconds)
    kept = [share for share in found if share is not gone and share is not rest]
    last = max((place for place, share in enumerate(kept) if share.side == gone.side), default=-1)
    return [*kept[: last + 1], taken, *kept[last + 1 :]]


def _place(share: Share) -> tuple[int, float]:
    if share.is_wait:
        return len(_WORK), -share.share
    return (_WORK.index(share.what), 0.0) if share.what in _WORK else (len(_WORK) + 1, 0.0)
