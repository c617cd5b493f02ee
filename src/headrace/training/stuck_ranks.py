"""Which rank hangs, once one of those that make their passes together makes no progress. Each looks at itself alone,
and those that wait for it in a collective make none either: one of them may be the first that is found to be stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from headrace.runtime.local.service import STANDING
from headrace.runtime.progress import Standing
from headrace.runtime.together import together
from headrace.runtime.workers import WorkerLost, Workers
from headrace.training.layouts.ranks import Layout

_ANSWER_S = 2.0
"""In which an event loop answers."""
_SILENT = Standing(-1, waits=False)
"""Of a rank whose event loop does not: it is behind all others."""


async def who_hangs(workers: Workers[Any], layout: Layout, lost: WorkerLost, own: Standing) -> WorkerLost:
    """The loss of the rank that the others of its replica wait for, once one, `lost`, was stuck where it stood: `lost`
    itself, or that of another one, which is there still or was stuck as well. Of several that cannot be told apart all
    are named."""
    mates = [rank for rank in layout.members(layout.within(lost.rank)[0]) if rank != lost.rank]
    asked = await together(_standing(workers, rank) for rank in mates)
    standings = {rank: each for rank, each in zip(mates, asked, strict=True) if each is not None}
    # Stages have layers of their own, each of which is a mark.
    least = least_far({lost.rank: own} | standings, counts=layout.pp == 1)
    if least == [lost.rank]:
        return lost
    names = [workers.handles[rank].worker for rank in least]
    if len(least) > 1:
        words = f"{lost.reason}; any of {', '.join(names)} may be the one that hangs"
        return WorkerLost(lost.rank, words, worker=lost.worker)
    how = "does not answer" if standings[least[0]] is _SILENT else "hangs"
    return WorkerLost(least[0], f"it {how}, and others wait for it: {lost}", worker=names[0])


def least_far(standings: Mapping[int, Standing], *, counts: bool) -> list[int]:
    """Of these ranks those that others wait for, as far as can be told: one that waits itself is not, unless all do.
    `counts`: whether all make the same marks."""
    own = {rank: each for rank, each in standings.items() if not each.waits} or standings
    far = {rank: each.marks if counts else min(each.marks, 0) for rank, each in own.items()}
    return sorted(rank for rank in far if far[rank] == min(far.values()))


async def _standing(workers: Workers[Any], rank: int) -> Standing | None:
    """None of one that is in no call, or has ended and was not stuck."""
    asking = asyncio.ensure_future(workers.call(STANDING, rank=rank, what="how far it is"))
    asking.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait([asking], timeout=_ANSWER_S)
    if not asking.done():
        return _SILENT  # to be told to stop it would have some seconds more; it is ended, and this call with it
    try:
        (found,) = asking.result()
    except WorkerLost as ended:
        return Standing.told_in(ended.reason)
    return None if found is None else Standing(*found)
