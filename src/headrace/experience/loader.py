"""The streaming loader: the rows of one batch, micro-batch by micro-batch, as they become ready."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping

from headrace.experience.flow import Flow
from headrace.experience.index import Row, RowId
from headrace.experience.samplers import token_budget
from headrace.experience.table import ExperienceTable, Lease


def row_length(row: Row) -> int:
    """Tokens of a row, prompt included."""
    return len(row.columns["tokens"])


class StreamingLoader:
    """Leases the batch's rows to the actor. The leases of a batch are acked together, after its step."""

    def __init__(
        self,
        table: ExperienceTable,
        flow: Flow,
        *,
        consumer: str,
        max_tokens: int,
        streaming: bool,
        timeout_s: float,
    ) -> None:
        """`streaming` False: nothing is handed out until the batch is sealed."""
        self._table = table
        self._flow = flow
        self._consumer = consumer
        self._budget = token_budget(max_tokens, row_length)
        self._streaming = streaming
        self._timeout_s = timeout_s

    async def micro_batches(self, batch: int, until: Callable[[], bool] = lambda: False) -> AsyncGenerator[Lease]:
        """Leases of at most the token budget (one row may exceed it), until every row of `batch` was handed out,
        or `until()` holds (looked at when the consumer is woken).

        Raises WaitTimeout if no row comes within the time limit.
        """
        handed_out = 0

        def is_complete() -> bool:
            if self._flow.is_finished:
                return True
            return self._flow.is_sealed and handed_out >= self._flow.rows_of_batch()

        while not (is_complete() or until()):
            lease = await self._table.lease(
                self._consumer,
                lambda ready: self._choose(ready, batch),
                seconds=self._timeout_s,
                what=lambda: f"rows of batch {batch} ({self._flow.describe()})",
                until=lambda: is_complete() or until(),
            )
            if lease is None:
                return
            handed_out += len(lease.rows)
            yield lease

    def _choose(self, ready: Mapping[RowId, Row], batch: int) -> list[RowId]:
        if not self._streaming and not self._flow.is_sealed:
            return []
        return list(self._budget({i: row for i, row in ready.items() if row.columns["batch"] == batch}))
