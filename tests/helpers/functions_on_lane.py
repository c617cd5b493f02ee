"""The user's functions, asked for without a worker."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.experience.columns import Columned, FinishedGroup
from headrace.roles.columns.functions import LANE, Advantages, Columns, Functions
from headrace.roles.context import RoleContext


class OnLane:
    """`AskedFunctions` on a lane."""

    def __init__(self, context: RoleContext, functions: Functions) -> None:
        self._context = context
        self._functions = functions

    async def stage(self, name: str, rows: Sequence[Columned], groups: Sequence[FinishedGroup]) -> Columns:
        """See `AskedFunctions.stage`."""
        what = f"stage {name} to return"
        return await self._context.compute(LANE, what, self._functions.stage, name, rows, groups)

    async def advantages(self, rows: Sequence[Columned], beta: float, *, moves: bool) -> Advantages:
        """See `AskedFunctions.advantages`."""
        return await self._context.compute(LANE, "the advantage", self._functions.advantages, rows, beta, moves)

    async def coefficient(self, beta: float, kl: float, samples: int) -> float:
        """See `AskedFunctions.coefficient`."""
        return await self._context.compute(LANE, "the KL's controller", self._functions.coefficient, beta, kl, samples)
