"""The functions worker as roles ask it, and what follows its end: it comes back, and what it kept is computed again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from headrace.algorithms.pieces import PieceError
from headrace.experience.columns import Columned, FinishedGroup
from headrace.experience.records.restored_refs import RestoredRefs
from headrace.roles.columns.functions import LANE, Advantages, Columns, FunctionsLost
from headrace.roles.context import RoleContext
from headrace.roles.known_refs import there
from headrace.roles.workers.functions import FunctionRow, FunctionsWorker
from headrace.runtime.placing import NoRoom
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.refs import Ref, RefLost, refs_in
from headrace.runtime.signal import Signal
from headrace.runtime.supervision import FUNCTIONS, LossWindow, Measure, Often, after_failure
from headrace.runtime.workers import WorkerError, WorkerLost, Workers

WORKER = f"{LANE}/0"
_PATIENCE_S = 3600.0

T = TypeVar("T")
Ask = Callable[[Sequence[FunctionRow], Sequence[FinishedGroup]], Awaitable[T]]


class InWorker:
    """`AskedFunctions` of the only worker of its kind. Whoever asks while it is away waits for it."""

    def __init__(
        self,
        workers: Workers[FunctionsWorker],
        context: RoleContext,
        reads: Mapping[str, Sequence[str]],
        *,
        name: str,
        often: Often | None = None,
    ) -> None:
        """`reads`: columns that each stage which it computes declares; `name`: of the stage of advantages. `often`:
        losses with which it is given up, beside those without an answer between; None: there are no others."""
        self._workers = workers
        self._context = context
        self._reads = reads
        self._name = name
        self._is_up = True
        self._failures = 0
        """In a row, without an answer."""
        self._losses = LossWindow(often)
        self._given_up: str | None = None
        self._changed = Signal()
        workers.changed.listen(self._look)
        self._look()

    async def run(self) -> None:
        """Bring it back each time, until cancelled, as the run ends. Raises FunctionsLost if it is lost too often, or
        no node has room for it in time."""
        clock = self._context.runtime.clock
        while True:
            await self._until(lambda: not self._is_up)
            self._failures += 1
            reason = self._workers.lost.get(0, "")
            following = after_failure(FUNCTIONS, self._failures)
            too_often = self._losses.lost(clock.now())
            if following.measure is Measure.STOP:
                too_often = f"{self._failures} times in a row"
            if too_often is not None:
                raise self._gives_up(f"was lost {too_often}, the last time so: {reason}")
            self._context.report("worker_lost", {"worker": WORKER, "message": f"{WORKER} is made anew: {reason}"})
            await clock.sleep(following.pause_s)
            try:
                await self._workers.restart(0)
            except (WorkerError, WorkerLost, WaitTimeout, OSError) as error:
                if isinstance(error.__cause__, NoRoom):  # the next would wait as long again
                    raise self._gives_up(f"has no room any more: {error}") from error
                continue  # why is in `lost`
            self._is_up = 0 not in self._workers.lost
            self._changed.notify()

    def _gives_up(self, why: str) -> FunctionsLost:
        self._given_up = (
            f"the functions worker {why}; mend that (functions.placement=own computes in the run's own process, for a "
            "debugger), and --resume the run"
        )
        self._changed.notify()
        return FunctionsLost(self._given_up)

    async def stage(self, name: str, rows: Sequence[Columned], groups: Sequence[FinishedGroup]) -> Columns:
        """See `AskedFunctions.stage`."""

        async def ask(rows: Sequence[FunctionRow], groups: Sequence[FinishedGroup]) -> Columns:
            columns: Columns = await self._call(f"stage {name} to return", "stage", name, rows, groups)
            return columns

        return await self._found(ask, self._told(rows, name), groups)

    async def advantages(self, rows: Sequence[Columned], beta: float, *, moves: bool) -> Advantages:
        """See `AskedFunctions.advantages`."""

        async def ask(rows: Sequence[FunctionRow], groups: Sequence[FinishedGroup]) -> Advantages:
            found: Advantages = await self._call("the advantage", "advantages", rows, beta, moves)
            return found

        return await self._found(ask, self._told(rows, self._name), ())

    async def coefficient(self, beta: float, kl: float, samples: int) -> float:
        """See `AskedFunctions.coefficient`. Raises FunctionsLost, but no WorkerLost: it is asked again."""
        while True:
            await self._until(lambda: self._is_up or self._given_up is not None)
            if self._given_up is not None:
                raise FunctionsLost(self._given_up)
            try:
                value: float = await self._call("the KL's controller", "coefficient", beta, kl, samples)
            except WorkerLost:
                continue
            return value

    def _told(self, rows: Sequence[Columned], stage: str) -> list[FunctionRow]:
        reads = [name for name in self._reads[stage] if name != "group"]
        return [FunctionRow(row.header, {name: row.columns[name] for name in reads}) for row in rows]

    async def _found(self, ask: Ask[T], rows: Sequence[FunctionRow], groups: Sequence[FinishedGroup]) -> T:
        """What is answered. Columns of samples that were lost with a rollout worker are read from the journal. Raises
        RefLost for what is in none."""
        refs = self._context.refs
        try:
            return await _answer(ask, rows, groups)
        except RefLost:
            if not isinstance(refs, RestoredRefs):
                raise
        return await _answer(ask, *await self._context.compute(LANE, "lost columns", _known_again, refs, rows, groups))

    async def _call(self, what: str, method: str, *args: object) -> Any:
        await self._until(lambda: self._is_up)
        calling = self._workers.call(method, *args, rank=0, what=what)
        try:
            answer = (await self._context.computed(LANE, what, calling))[0]
        except WorkerError as error:
            if error.type == PieceError.__name__:
                raise PieceError(error.text) from error
            raise
        self._failures = 0
        return answer

    async def _until(self, condition: Callable[[], bool]) -> None:
        """However long it takes: the run ends where the worker does not come back."""
        while not condition():
            try:
                await self._changed.wait(self._context.runtime.clock, _PATIENCE_S, "the functions worker")
            except WaitTimeout:
                continue

    def _look(self) -> None:
        """In the same turn of the loop: who reads what is lost has lost its lease by then."""
        if self._is_up and 0 in self._workers.lost:
            self._is_up = False
            self._context.table.lose(WORKER, tuple(self._reads))
            self._changed.notify()


async def _answer(ask: Ask[T], rows: Sequence[FunctionRow], groups: Sequence[FinishedGroup]) -> T:
    """What `ask` gives. Raises RefLost."""
    try:
        return await ask(rows, groups)
    except WorkerError as error:
        if error.type != RefLost.__name__:
            raise
        raise RefLost(next(refs_in([[row.columns for row in rows], groups]))) from error


def _known_again(
    refs: RestoredRefs, rows: Sequence[FunctionRow], groups: Sequence[FinishedGroup]
) -> tuple[list[FunctionRow], list[FinishedGroup]]:
    """The same with refs to what is there. Blocking. Raises RefLost for a column that is in no journal."""

    def found(value: Any) -> Any:
        return there(refs, value) if isinstance(value, Ref) else value

    return (
        [replace(row, columns={name: found(value) for name, value in row.columns.items()}) for row in rows],
        [replace(group, refs=tuple(there(refs, ref) for ref in group.refs)) for group in groups],
    )
