"""How many micro-batches a trainer is asked for in one call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from headrace.roles.context import RoleContext
from headrace.roles.known_refs import with_known_refs
from headrace.training.rows.packed_rows import RowToTrain

T = TypeVar("T")
A = TypeVar("A")

_MOMENT_S = 0.25
"""A call takes about so long: beside it what a message costs is nothing, and whoever wants to stop waits no longer."""
_MOST = 8


class CallSize:
    """As many as take a moment, by how long the last ones took. What one rank computes does not depend on it; several
    share the rows of a call, so that their sums are rounded otherwise."""

    def __init__(self) -> None:
        self._count = 1

    def calls(self, plan: Sequence[Sequence[int]]) -> Iterator[list[list[int]]]:
        """`plan`: of each micro-batch the places of its rows. Those of one call after another, in order."""
        at = 0
        while at < len(plan):
            taken = [list(places) for places in plan[at : at + self._count]]
            yield taken
            at += len(taken)

    def took(self, count: int, seconds: float) -> None:
        """So many micro-batches, in one call."""
        each = seconds / count
        self._count = _MOST if each * _MOST <= _MOMENT_S else max(int(_MOMENT_S / each), 1)


async def in_one_call(
    context: RoleContext,
    size: CallSize,
    rows: Sequence[RowToTrain],
    micros: Sequence[Sequence[int]],
    accumulate: Callable[[list[list[RowToTrain]]], Awaitable[A]],
) -> A:
    """What `accumulate` gives for these micro-batches of `rows`, places of each. Raises RefLost."""
    sizes, now = [len(micro) for micro in micros], context.runtime.clock.now
    began = now()
    asked = [rows[place] for micro in micros for place in micro]
    found = await with_known_refs(context, asked, lambda known: accumulate(micros_of(known, sizes)))
    size.took(len(micros), now() - began)
    return found


def micros_of(rows: Sequence[T], sizes: Sequence[int]) -> list[list[T]]:
    """The rows of a call, in micro-batches of these sizes."""
    left = iter(rows)
    return [[next(left) for _ in range(size)] for size in sizes]
