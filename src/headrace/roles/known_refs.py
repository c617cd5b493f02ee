"""Rows whose columns were lost with a rollout worker: what the journal has is asked for again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from headrace.experience.records.restored_refs import RestoredRefs
from headrace.roles.context import RoleContext
from headrace.runtime.refs import Ref, RefLost
from headrace.training.rows.packed_rows import RowToTrain

T = TypeVar("T")

_LANE = "functions"


def there(refs: RestoredRefs, ref: Ref) -> Ref:
    """The ref by which its columns are known now: of those that were lost, once they are read from the journal.
    Blocking. Raises RefLost."""
    refs.get(ref, ())
    return refs.current(ref)


def known_again(refs: RestoredRefs, rows: Sequence[RowToTrain]) -> list[RowToTrain]:
    """The rows with refs to what is there: what was lost with a rollout worker is read from the journal. Blocking.
    Raises RefLost for a column that is in no journal."""

    def found(value: object) -> object:
        return there(refs, value) if isinstance(value, Ref) else value

    return [replace(row, columns={name: found(value) for name, value in row.columns.items()}) for row in rows]


async def with_known_refs(
    context: RoleContext, rows: Sequence[RowToTrain], ask: Callable[[Sequence[RowToTrain]], Awaitable[T]]
) -> T:
    """What `ask` gives for the rows; it is asked again if something of them was lost, and the journal has it. It must
    have done nothing where it raises RefLost. Raises RefLost for what no journal has."""
    try:
        return await ask(rows)
    except RefLost:
        if not isinstance(context.refs, RestoredRefs):
            raise
        return await ask(await context.compute(_LANE, "lost columns", known_again, context.refs, rows))
