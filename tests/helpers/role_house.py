"""A table, a flow and a clock that a role can be tried on alone, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from table_rows import header

from headrace.experience.columns import FinishedGroup, read
from headrace.experience.flow import TrainedBatch
from headrace.experience.header import GroupHeader
from headrace.experience.leases import Consumer, Row, RowId
from headrace.experience.sample import GroupKey
from headrace.experience.table import ExperienceTable
from headrace.observe.waits import WaitMeter
from headrace.roles.context import RoleContext
from headrace.runtime.refs import Refs
from headrace.runtime.signal import Signal
from headrace.runtime.virtual import VirtualRuntime, run_virtually

LEASE_S, STALL_S, LONG_S = 10.0, 100.0, 25.0
"""A lease that nobody holds ends after the first; computing takes longer."""
TOKENS = np.arange(3, dtype=np.int32)
COLUMNS = {
    "kept_sets": None,
    "temperatures": None,
    "reward": 1.0,
    "terms": {},
}


@dataclass
class Flow:
    """Batches of all rows that are there, sealed."""

    rows: int = 4
    batches: int = 1
    batch: int = 0
    is_finished: bool = False
    is_sealed: bool = True
    kept: list[GroupKey] = field(default_factory=list)
    dropped: list[tuple[GroupKey, str]] = field(default_factory=list)
    changed: Signal = field(default_factory=Signal)

    def rows_of_batch(self) -> int:
        return self.rows

    def describe(self) -> str:
        return "all rows"

    def step(self) -> TrainedBatch:
        self.batch += 1
        self.is_finished = self.batch == self.batches
        self.changed.notify()
        return TrainedBatch(self.batch - 1, 1, 0, {})

    def keep(self, key: GroupKey) -> None:
        self.kept.append(key)

    def drop(self, key: GroupKey, reason: str, *_: object) -> None:
        self.dropped.append((key, reason))


@dataclass
class House:
    """Two groups of two rows; `last` consumes what the role writes."""

    runtime: VirtualRuntime
    table: ExperienceTable
    flow: Flow
    context: RoleContext
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    ids: list[RowId] = field(default_factory=list)
    calls: int = 0
    """Of what computes for the role."""

    def long(self) -> None:
        """The call at hand takes longer than a lease lasts."""
        self.calls += 1
        self.runtime.charge(LONG_S)

    async def written(self, *columns: str) -> list[dict[str, Any]]:
        """What the rows have, once the last consumer can lease them all; it acks them. Raises WaitTimeout."""
        lease = await self.table.lease(
            "last", lambda ready: list(ready) if len(ready) == len(self.ids) else [], seconds=STALL_S, what=str
        )
        assert lease is not None
        rows: Sequence[Row] = sorted(lease.rows, key=lambda row: row.row_id)
        found = [read(self.table.refs, row, columns) for row in rows]
        self.table.ack(lease)
        return [dict(one) for one in found]

    async def settle(self) -> None:
        await self.runtime.clock.sleep(1.0)


def try_role(
    name: str,
    reads: Sequence[str],
    writes: Sequence[str],
    make: Callable[[House], Any],
    body: Callable[[House], Awaitable[None]],
    *,
    without: Sequence[str] = (),
    refs: Callable[[Refs], Refs] = lambda refs: refs,
    **columns: Any,
) -> None:
    """Run the role that `make` gives, a consumer `name` of `reads`, while `body` looks on; `columns`: of every row, but
    for those that it is `without`. `refs`: where the table's columns are, made of the runtime's."""

    async def main(runtime: VirtualRuntime) -> None:
        consumers = [Consumer(name, frozenset(reads)), Consumer("last", frozenset(writes or reads))]
        table = ExperienceTable(consumers, capacity=4, lease_s=LEASE_S, clock=runtime.clock, refs=refs(runtime.refs))
        flow: Any = Flow()
        events: list[tuple[str, dict[str, Any]]] = []
        context = RoleContext(
            runtime, flow, table, WaitMeter(runtime.clock.now), lambda kind, data: events.append((kind, data)), STALL_S
        )
        house = House(runtime, table, flow, context, events)
        for position in range(2):
            key = GroupKey(0, position, 0)
            table.reserve(key)
            arrays = {
                "tokens": TOKENS,
                "loss_mask": np.array([False, True, True]),
                "logprobs": np.full(3, -1.0, np.float32),
                "versions": np.array([-1, 0, 0], np.int32),
                "branches": np.array([-1, 0, 0], np.int32),
                **COLUMNS,
                **columns,
            }
            headers = tuple(header(key, episode=episode, reward=float(episode)) for episode in range(2))
            kept = [{**arrays, "reward": one.reward, "metadata": table.refs.put({"tokens": TOKENS})} for one in headers]
            rows = [
                (one, {name: value for name, value in found.items() if name not in without})
                for one, found in zip(headers, kept, strict=True)
            ]
            finished = FinishedGroup(
                GroupHeader(key, str(position), 0, 4, headers), tuple(found["metadata"] for found in kept)
            )
            house.ids += table.put(key, rows, group=finished)
        running = runtime.spawn(make(house).run(), name)
        try:
            await body(house)
            if running.done():
                await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run_virtually(main)


async def all_is_gone(house: House) -> None:
    """Everybody has acked: no row is left, and no ref of one."""
    await house.settle()
    assert house.table.rows == 0
    assert house.runtime.kept == 0
