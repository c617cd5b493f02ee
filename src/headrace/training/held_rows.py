"""Rows of a batch that ranks hold, since several steps go over them: each row is one rank's."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.models.packing import plan_microbatches
from headrace.runtime.refs import Ref
from headrace.training.rank_workers import Ranks, ranks_of
from headrace.training.rows.packed_rows import RowToTrain
from headrace.training.shared_passes import SharedPasses


class HeldRows:
    """Of one batch at a time."""

    def __init__(self, ranks: Ranks, passes: SharedPasses, max_tokens: int) -> None:
        """`max_tokens`: of a micro-batch, where there are several ranks."""
        self._ranks = ranks
        self._passes = passes
        self._max_tokens = max_tokens
        self._where: list[tuple[int, int]] = []
        """Of each row the part of the data, and its place there."""
        self._lengths: list[int] = []
        """Of the same rows, in tokens."""

    async def hold(self, batch: int, rows: Sequence[RowToTrain], coefficient: float | None) -> None:
        """See `TrainerRank.hold`."""
        layout, self._lengths = self._ranks.layout, [len(row) for row in rows]
        own = [[place for places in part for place in places] for part in self._passes.parts(self._lengths)]
        self._where = [(0, 0)] * len(rows)
        for part, places in enumerate(own):
            for number, place in enumerate(places):
                self._where[place] = part, number
        given = {
            rank: (batch, [rows[place] for place in own[layout.place(rank).dp]], coefficient)
            for rank in ranks_of(self._ranks)
        }
        await self._ranks.each("hold", given, what="a batch's rows")

    async def over(self, method: str, places: Sequence[int], what: str) -> None:
        """A pass over these rows: each rank over its own."""
        layout = self._ranks.layout
        if layout.size == 1:
            await self._ranks.call(method, list(places), what=what)
            return
        own: list[list[int]] = [[] for _ in range(layout.dp)]
        for place in places:
            own[self._where[place][0]].append(place)
        passes = []
        for mine in own:
            plan = plan_microbatches([self._lengths[place] for place in mine], self._max_tokens)
            passes.append([([self._where[mine[number]][1] for number in part],) for part in plan])
        await self._passes.made(method, passes, ([],), what)

    async def let_go(self) -> Sequence[Ref | None]:
        """See `TrainerRank.let_go`. Of a rank that is lost nothing is known; the batch is trained all the same."""
        where, self._where = self._where, []
        every = dict.fromkeys(ranks_of(self._ranks), ())
        found = await self._ranks.answered("let_go", every, what="what a batch began with")
        if not any(found.values()):
            return []
        told = [found.get(head) or [] for head in self._ranks.layout.heads]
        return [told[part][number] if told[part] else None for part, number in where]
