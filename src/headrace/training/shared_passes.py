"""Passes over rows that ranks share: who has which, and what came of each, in the rows' order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.workers import WorkerError
from headrace.training.layouts.ranks import Layout
from headrace.training.rank_workers import Ranks
from headrace.training.shares import shares

T = TypeVar("T")
Parts = Sequence[Sequence[Sequence[int]]]
"""By part of the data, its micro-batches: each has the places of its rows among all."""


class SharedPasses:
    """Each row is in one part of the data, whole; parts have about as many tokens each."""

    def __init__(self, ranks: Ranks, max_tokens: int) -> None:
        """`max_tokens`: the most in a micro-batch, where there are several ranks."""
        self._ranks = ranks
        self._max_tokens = max_tokens

    @property
    def _layout(self) -> Layout:
        return self._ranks.layout

    def parts(self, lengths: Sequence[int], had: Sequence[int] | None = None) -> list[list[list[int]]]:
        """How rows of these `lengths`, in tokens, are shared by those that take part. One rank alone has all in one
        micro-batch. `had`: see `shares`."""
        if self._layout.size == 1:
            return [[[*range(len(lengths))]]]
        present, dp = self._ranks.present, self._layout.dp
        theirs = [part for part in range(dp) if self._layout.within(self._layout.head(part))[0] in present]
        shared = shares(lengths, len(theirs), self._max_tokens, None if had is None else [had[part] for part in theirs])
        found: list[list[list[int]]] = [[] for _ in range(dp)]
        for part, micros in zip(theirs, shared, strict=True):
            found[part] = micros
        return found

    async def made(
        self,
        method: str,
        given: Sequence[Sequence[tuple[Any, ...]]],
        nothing: tuple[Any, ...],
        what: str,
        *,
        reads: bool = False,
        left: Callable[[Any], None] = lambda answer: None,
    ) -> dict[int, list[Any]]:
        """Call `method` on each rank once for each of the arguments `given` to its part of the data, one call after
        another; returns the answers by rank. Where passes are joint, all ranks of a replica make as many calls: one
        that has no more is given `nothing`. `reads`: the last argument is rows, which each rank has to `read` before
        any of them begins a joint pass: in one that another does not begin it would wait until it is ended. Where a
        rank fails, its error is raised, and `left` is called with each answer that others gave."""
        found: dict[int, list[Any]] = {rank: [] for rank in range(self._layout.size)}
        failed = False

        async def asked(name: str, now: Mapping[int, tuple[Any, ...]]) -> Mapping[int, Any]:
            nonlocal failed
            if failed:
                return {}
            try:
                return await self._ranks.each(name, now, what=what)
            except BaseException:
                failed = True
                raise

        async def each(now: Mapping[int, tuple[Any, ...]]) -> None:
            for rank, answer in (await asked(method, now)).items():
                found[rank].append(answer)

        async def of_rank(rank: int) -> None:
            for arguments in given[rank]:
                await each({rank: arguments})

        async def of_replica(replica: int) -> None:
            own = {rank: given[self._layout.place(rank).dp] for rank in self._layout.members(replica)}
            if reads:
                of_each = {rank: [arguments[-1] for arguments in part] for rank, part in own.items()}
                await asked("read", {rank: (*nothing[:-1], rows) for rank, rows in of_each.items()})
            for number in range(max(map(len, own.values()))):
                await each({rank: part[number] if number < len(part) else nothing for rank, part in own.items()})

        if self._layout.joint:
            passes = [of_replica(replica) for replica in self._ranks.present]
        else:
            passes = [of_rank(rank) for rank, part in enumerate(given) if part]
        # All to their end: else nobody would have the answers that come after another's failure.
        outcomes = await asyncio.gather(*passes, return_exceptions=True)
        if (failure := next((one for one in outcomes if one is not None), None)) is not None:
            for answer in (answer for answers in found.values() for answer in answers):
                left(answer)
            raise failure
        return found

    def in_order(self, parts: Parts, answers: Mapping[int, Sequence[Sequence[Any]]], rows: int) -> list[Any]:
        """The answer for each of so many `rows`, from those of each part's head; empty where ranks answer nothing."""
        found: list[Any] = [None] * rows
        for dp, part in enumerate(parts):
            if not part:
                continue
            for places, made in zip(part, answers[self._layout.head(dp)][: len(part)], strict=True):
                if not made:
                    return []
                for place, one in zip(places, made, strict=True):
                    found[place] = one
        return found


async def of_refs(refs: Callable[[], Ref | None], asking: Awaitable[T]) -> T:
    """The answer of workers that read columns. `refs`: gives a ref that they were asked to read, which may be the one
    that is lost. Raises RefLost for it where a worker could not read one."""
    try:
        return await asking
    except WorkerError as error:
        if error.type != RefLost.__name__ or (lost := refs()) is None:
            raise
        raise RefLost(lost) from error
