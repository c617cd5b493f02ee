"""Rows that ranks hold over several steps: each is asked for where it is, and answered in its own place."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.training.held_rows import HeldRows
from headrace.training.layouts.ranks import Layout
from headrace.training.shared_passes import SharedPasses

BUDGET = 16


class TwoRanks:
    """Two heads of the data, which hold rows and note those that they are asked for."""

    layout = Layout(dp=2)
    left = whole = present = (0, 1)

    def __init__(self) -> None:
        self.held: dict[int, list[Any]] = {}
        self.passes: list[list[Any]] = []

    async def each(self, method: str, args: Mapping[int, tuple[Any, ...]], *, what: str) -> dict[int, Any]:
        for rank, asked in args.items():
            if method == "hold":
                self.held[rank] = asked[1]
            else:
                self.passes.append([self.held[rank][number] for number in asked[0]])
        return dict.fromkeys(args)

    async def answered(self, method: str, args: Mapping[int, tuple[Any, ...]], *, what: str) -> dict[int, Any]:
        return {rank: [*self.held[rank]] for rank in args}


@given(st.lists(st.integers(1, 24), min_size=1, max_size=12), st.data())
def test_each_row_is_found_where_it_is_held(lengths: list[int], data: st.DataObject) -> None:
    rows = [(number,) * length for number, length in enumerate(lengths)]
    places = data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True))

    async def main() -> None:
        ranks: Any = TwoRanks()
        held = HeldRows(ranks, SharedPasses(ranks, BUDGET), BUDGET)
        asked: Any = rows
        await held.hold(0, asked, None)
        assert sorted(row for part in ranks.held.values() for row in part) == sorted(rows)
        for _ in range(2):
            ranks.passes.clear()
            await held.over("score_held", places, "scores")
            assert sorted(row for made in ranks.passes for row in made) == sorted(rows[place] for place in places)
            assert all(len(made) == 1 or sum(map(len, made)) <= BUDGET for made in ranks.passes)
        assert await held.let_go() == rows

    asyncio.run(main())
