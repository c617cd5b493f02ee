"""The streaming loader: the rows of one batch, micro-batch by micro-batch, as they become ready."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

from headrace.experience.flow import Flow
from headrace.experience.leases import Row, RowId
from headrace.experience.ready_rows import ReadyRows
from headrace.experience.samplers import in_order
from headrace.experience.table import ExperienceTable, Lease
from headrace.runtime.protocol import WaitTimeout


def row_length(row: Row) -> int:
    """Tokens of a row, prompt included."""
    return row.header.length


class StreamingLoader:
    """Leases the batch's rows to whoever trains on them. The leases of a batch are acked together, after its step.

    Rows are handed out once they fill a micro-batch: for a few rows at a time a pass costs up to twice as much, and a
    group that comes apart loses the pass over its shared prompt. As soon as no more are to come, what is left is one
    lease, in order of the rows' keys, for micro-batches of balanced size.
    """

    def __init__(
        self,
        table: ExperienceTable,
        flow: Flow,
        *,
        consumer: str,
        max_tokens: int | None,
        streaming: bool,
        timeout_s: float,
        unfinished: Callable[[], str] = str,
        stood_still: Callable[[], float] = float,
        holds: Callable[[], bool] = bool,
    ) -> None:
        """`max_tokens`: of a micro-batch; None: the whole batch is one lease. `streaming` False: nothing is handed out
        until the batch is sealed; nor is it while `holds()`. `unfinished`: what else there is to say of a wait that is
        too long. `stood_still`: seconds that count towards no wait, up to now: nobody could have brought a row."""
        self._unfinished = unfinished
        self._stood_still = stood_still
        self._table = table
        self._flow = flow
        self._consumer = consumer
        self._max_tokens = sys.maxsize if max_tokens is None else max_tokens
        self._streaming = streaming
        self._holds = holds
        self._timeout_s = timeout_s

    def leases(self, batch: int, until: Callable[[], bool] = lambda: False) -> AsyncIterator[Lease]:
        """Leases of at most the token budget (one row, and the last lease, may exceed it), until every row of `batch`
        was handed out, or `until()` holds (looked at when the consumer is woken). No generator: nothing of it is left
        open where it is left early.

        Raises WaitTimeout if no row comes within the time limit.
        """
        return _Leases(self, batch, until)

    async def _next(self, batch: int, handed_out: int, until: Callable[[], bool]) -> Lease | None:
        """The lease after so many rows of the batch; None if there is none."""

        def is_over() -> bool:
            if self._flow.is_finished or until():
                return True
            return self._flow.is_sealed and handed_out >= self._flow.rows_of_batch()

        if is_over():
            return None
        left = self._timeout_s
        while True:
            before = self._stood_still()
            try:
                return await self._table.lease(
                    self._consumer,
                    partial(self._choose, batch, handed_out),
                    seconds=left,
                    what=lambda: f"rows of batch {batch} ({self._flow.describe()}{self._unfinished()})",
                    until=is_over,
                )
            except WaitTimeout:
                left = self._stood_still() - before
                if left <= 0:
                    raise

    def _choose(self, batch: int, handed_out: int, ready: ReadyRows) -> list[RowId]:
        sealed = self._flow.is_sealed
        if not sealed and (self._holds() or not self._streaming):
            return []
        rows = ready.of_batch(batch)
        if sealed and handed_out + len(rows) >= self._flow.rows_of_batch():
            return in_order(rows)
        if rows.tokens(row_length) < self._max_tokens:
            return []
        return rows.fitting(self._max_tokens, row_length)


@dataclass(slots=True)
class _Leases:
    loader: StreamingLoader
    batch: int
    until: Callable[[], bool]
    handed_out: int = 0
    """Rows."""

    def __aiter__(self) -> _Leases:
        return self

    async def __anext__(self) -> Lease:
        lease = await self.loader._next(self.batch, self.handed_out, self.until)
        if lease is None:
            raise StopAsyncIteration
        self.handed_out += len(lease.rows)
        return lease
