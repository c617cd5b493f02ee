"""Rollout workers as the controller has them: who plays which group, and what becomes of it when one is lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.config.evaluation import HeldOut
from headrace.engines.completions import NotServed
from headrace.engines.pool import Place
from headrace.experience.columns import FinishedGroup, put_samples
from headrace.experience.failures import FailureKind, describe
from headrace.experience.flow import NothingToTrain
from headrace.experience.header import GroupHeader, header_of
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.records.codec import CodecError, decode_group
from headrace.experience.records.restored_refs import RestoredRefs
from headrace.experience.sample import Group, GroupKey, SampleStatus
from headrace.observe.durations import Durations
from headrace.roles.reissue import Blame, Losses, LostTime
from headrace.roles.workers.rollout import RolloutWorker
from headrace.roles.workers.rollout_types import Assignment, Played
from headrace.rollout.episodes import empty_sample
from headrace.runtime import off_loop
from headrace.runtime.protocol import Runtime, WaitTimeout
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.signal import Signal
from headrace.runtime.supervision import ROLLOUT_WORKER, Measure, after_failure
from headrace.runtime.workers import WorkerError, WorkerLost, Workers
from headrace.store import Receipt, RunStore
from headrace.store.errors import DiskFull, StoreError
from headrace.weights.version import Version

_SILENT_S = 120.0
"""In which a worker that plays says that it does: six times what it takes."""
_BEGIN_S = 600.0
_PATIENCE_S = 3600.0
_JUDGE_TRIES = 4
LANE = "journal"

_ERRORS: dict[str, type[Exception]] = {kind.__name__: kind for kind in (NotServed, DiskFull, StoreError, CodecError)}
"""Of what a worker raises, those that are told as what they are."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Seat:
    """A worker's place, which outlives the worker."""

    rank: int
    writer: int
    """Its number among those who journal: each life has its own, so that nothing is written behind a torn end."""
    is_up: bool = False
    life: int = 0
    aboard: list[GroupKey] = field(default_factory=list)
    alone: GroupKey | None = None
    """Nothing else comes aboard."""
    blame: Blame = field(default_factory=Blame)
    since: float = 0.0
    """When it began with what it is at, or was lost."""


class RolloutWorkers:
    """Plays groups as `EpisodeRunner` does, each on the worker with the least aboard. What a worker is lost with is in
    its journal, or was not finished: WorkerLost.

    Each worker comes back after a pause, until it was lost too often in a row: then NothingToTrain is raised.
    """

    def __init__(
        self,
        workers: Workers[RolloutWorker],
        count: int,
        runtime: Runtime,
        store: RunStore,
        refs: RestoredRefs,
        losses: Losses,
        *,
        times: Durations,
    ) -> None:
        """`times`: takes the calls to rewards."""
        self._workers = workers
        self._runtime = runtime
        self._store = store
        self._refs = refs
        self._losses = losses
        self._times = times
        taken = max((segment.writer for segment in store.journal.segments()), default=0)
        self._seats = [_Seat(rank, taken + 1 + rank) for rank in range(count)]
        self._next_writer = taken + 1 + count
        self._changed = Signal()
        self._given_up: Exception | None = None
        self.lost_time = LostTime(runtime.clock.now)
        self._closing = False
        self._line: tuple[Version, Mapping[int, int]] | None = None
        """Where the run went on, if it went back since they were made."""
        self._written: dict[GroupKey, Played] = {}
        """Of groups that have ended: until they are asked for."""
        self.tell: Callable[[str, dict[str, Any]], None] = lambda kind, data: None
        workers.changed.listen(self._look)

    async def begin(self) -> None:
        """Have all workers open their parts. Raises WorkerError, WorkerLost."""
        for seat in self._seats:
            await self._begin(seat)

    async def close(self) -> None:
        """End them. What they have put is lost."""
        self._closing = True
        await self._workers.close()

    async def go_back(self, begun: Version, last_kept: Mapping[int, int]) -> None:
        """Tell all workers that the run goes on from `begun`; see `Lineage.go_back`. Raises WorkerError."""
        self._line = begun, last_kept
        for seat in self._seats:
            if seat.is_up:
                with suppress(WorkerLost):  # it is told when it comes back
                    await self._tell_line(seat)

    async def _tell_line(self, seat: _Seat) -> None:
        if self._line is not None:
            begun, last_kept = self._line
            await self._workers.call(
                "go_back", begun, dict(last_kept), rank=seat.rank, what="a rollout worker to go back"
            )

    async def run_group(
        self,
        key: GroupKey,
        prompt: Prompt,
        start_version: Version,
        deadline: int,
        issue: int = 0,
        place: Place | None = None,
    ) -> GroupHeader:
        """See `EpisodeRunner.run_group`; of the group its header. Raises NotServed, WorkerLost."""
        given = _assignment(key, prompt, start_version, deadline, issue, place)
        async with self._aboard(key) as seat:
            life, writer = seat.life, seat.writer
            self._store.ledger.assign(key, issue=issue, writer=writer)
            try:
                played = await self._last(seat, "play", given, what=f"group {key}")
            except WorkerLost:
                await self._gone(seat, life)
                found = await self._runtime.compute(LANE, self._journaled, key, issue, writer)
                if found is None:
                    raise
                played = found
        assert isinstance(played, Played)
        self._finished(seat)
        for seconds, count in played.reward_calls.items():
            self._times.counts[seconds] += count
        if played.receipt is not None:
            self._refs.note(played.refs, played.receipt.place)
        self._written[key] = played
        return played.header

    async def failed_of(self, key: GroupKey) -> Group | None:
        """Of a group that was just played, those samples that failed, if somebody keeps them."""
        failed = self._written[key].failed
        if self._written[key].receipt is None:
            del self._written[key]
        return None if failed is None else await self._runtime.compute(off_loop.LANE, decode_group, failed)

    async def write(self, header: GroupHeader) -> tuple[FinishedGroup, Receipt]:
        """What its worker has written of the group that was just played."""
        played = self._written.pop(header.key)
        assert played.receipt is not None
        return FinishedGroup(header, played.refs), played.receipt

    async def judge(self, header: GroupHeader, samples: Sequence[Ref], batch: int) -> tuple[str | None, list[str]]:
        """Why the finished group is dropped, and what filters failed with. Raises WorkerLost if workers were lost by
        it, again and again."""
        refs = tuple(samples)
        for attempt in range(1, _JUDGE_TRIES + 1):
            try:
                async with self._aboard(header.key, keeper=refs[0].keeper if refs else "") as seat:
                    life = seat.life
                    answer = await self._workers.call(
                        "judge", header, refs, batch, rank=seat.rank, what=f"the filters on {header.key}"
                    )
                    reason, faults = answer[0]
                    return reason, list(faults)
            except WorkerLost as error:
                await self._gone(seat, life)
                if attempt == _JUDGE_TRIES:
                    return "filter_error", [str(error)]
            except WorkerError as error:
                if error.type != RefLost.__name__ or attempt == _JUDGE_TRIES:
                    raise
            refs = await self._runtime.compute(LANE, self._present, refs)
        raise AssertionError

    def answers(self, held_out: HeldOut) -> _Answers:
        """Plays the prompts of a held-out set."""
        return _Answers(self, held_out)

    async def answer(self, given: Assignment, held_out: HeldOut) -> Group:
        """The group of a prompt of a held-out set. Raises NotServed."""
        while True:
            seat = None
            try:
                async with self._aboard(given.key) as seat:
                    life = seat.life
                    encoded = await self._last(
                        seat, "answer", given, held_out.name, what=f"{held_out.name} {given.key}"
                    )
                self._finished(seat)
                self._losses.ended(given.key)
                return await self._runtime.compute(off_loop.LANE, decode_group, bytes(encoded))
            except WorkerLost as error:
                if seat is not None:
                    await self._gone(seat, life)
                if self._losses.lost(given.key):
                    self._losses.ended(given.key)
                    failure = describe(FailureKind.WORKER_LOST, str(error))
                    samples = tuple(
                        empty_sample(given.key, episode, SampleStatus.FAILED, failure)
                        for episode in range(held_out.samples)
                    )
                    return Group(given.key, given.prompt.prompt_id, given.version.number, given.deadline, samples)

    async def _last(self, seat: _Seat, method: str, *args: Any, what: str) -> Any:
        """The last item of a stream that says now and then that it goes on."""
        last = None
        try:
            items: AsyncGenerator[Any, None] = self._workers.stream(
                method, *args, rank=seat.rank, what=what, seconds=_SILENT_S
            )
            async with aclosing(items):
                async for item in items:
                    last = item
        except WaitTimeout as late:
            await self._workers.kill(seat.rank, f"nothing was heard of {what} for {_SILENT_S:.0f} s")
            raise WorkerLost(seat.rank, str(late), worker=f"rollout/{seat.rank}") from late
        except WorkerError as error:
            if error.type in _ERRORS:
                raise _ERRORS[error.type](error.text) from error
            raise
        return last

    @asynccontextmanager
    async def _aboard(self, key: GroupKey, keeper: str = "") -> AsyncGenerator[_Seat]:
        """A seat for the group, alone if it has to be. `keeper`: whose seat is taken if it may be."""
        alone = self._losses.is_alone(key)
        seat = await self._chosen(key, keeper, alone=alone)
        try:
            if alone:
                await self._until(lambda: seat.is_up and not seat.aboard)
            if not seat.aboard:
                seat.since = self._runtime.clock.now()
            seat.aboard.append(key)
            try:
                yield seat
            finally:
                seat.aboard.remove(key)
        finally:
            if seat.alone == key:
                seat.alone = None
            self._changed.notify()

    async def _chosen(self, key: GroupKey, keeper: str, *, alone: bool) -> _Seat:
        def free() -> list[_Seat]:
            return [seat for seat in self._seats if seat.is_up and seat.alone is None]

        await self._until(lambda: bool(free()))
        seat = min(free(), key=lambda seat: (f"rollout/{seat.rank}" != keeper, len(seat.aboard), seat.rank))
        if alone:
            seat.alone = key
        return seat

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Raises NothingToTrain once the workers are given up, and what their return could not be recorded for."""
        await self._changed.wait_until(
            lambda: condition() or self._given_up is not None,
            self._runtime.clock,
            _PATIENCE_S,
            lambda: "a rollout worker",
        )
        if self._given_up is not None:
            raise self._given_up

    def _finished(self, seat: _Seat) -> None:
        seat.blame.finished()
        seat.since = self._runtime.clock.now()

    def _lost(self, seat: _Seat) -> None:
        """What it was at is lost, or it is back."""
        self.lost_time.lost(seat.since)
        seat.since = self._runtime.clock.now()

    async def _gone(self, seat: _Seat, life: int) -> None:
        """Until nothing is left of the worker that had this life: it has come back, or is given up."""
        self._look()
        await self._until(lambda: seat.life > life)

    def _look(self) -> None:
        """Have those come back that were lost."""
        for seat in self._seats:
            if seat.is_up and seat.rank in self._workers.lost and not self._closing:
                seat.is_up = False
                self._lost(seat)
                reason = self._workers.lost[seat.rank]
                self._runtime.spawn(self._bring_back(seat, reason, (*seat.aboard,)), f"return of rollout/{seat.rank}")

    async def _bring_back(self, seat: _Seat, reason: str, aboard: Sequence[GroupKey]) -> None:
        try:
            await self._make_anew(seat, reason, aboard)
        except Exception as error:  # a record that cannot be written: whoever waits for the worker must hear of it
            self._given_up = error
        self._changed.notify()

    async def _make_anew(self, seat: _Seat, reason: str, aboard: Sequence[GroupKey]) -> None:
        """`aboard`: when it was lost. Raises NothingToTrain, StoreError."""
        while not seat.is_up:
            failures, aboard = seat.blame.lost(aboard), ()
            name = f"rollout/{seat.rank}"
            self.tell("worker_lost", {"worker": name, "message": f"{name} is made anew: {reason}"})
            following = after_failure(ROLLOUT_WORKER, failures)
            if following.measure is Measure.STOP:
                raise NothingToTrain(
                    f"rollout worker {seat.rank} was lost {failures} times in a row, the last time so: {reason}; "
                    "mend that (rollout.workers=0 plays in the run's own process, for a debugger), and --resume the run"
                )
            await self._runtime.clock.sleep(following.pause_s)
            try:
                await self._workers.restart(seat.rank)
                seat.writer, self._next_writer = self._next_writer, self._next_writer + 1
                await self._begin(seat)
            except (WorkerError, WorkerLost, WaitTimeout, OSError) as error:
                reason = str(error)

    async def _begin(self, seat: _Seat) -> None:
        await self._workers.call("begin", seat.writer, rank=seat.rank, what="a rollout worker", seconds=_BEGIN_S)
        await self._tell_line(seat)
        if seat.life:
            self._lost(seat)
        seat.life += 1
        seat.is_up = True
        self._changed.notify()
        self._look()

    def _journaled(self, key: GroupKey, issue: int, writer: int) -> Played | None:
        """The group, if its worker had written it whole before it was lost. On the lane."""
        for receipt in self._store.journal.written(writer):
            if GroupKey(*receipt.key) == key and receipt.issue == issue:
                group = decode_group(self._store.journal.read(receipt.place))
                return Played(header_of(group), put_samples(self._refs, group), receipt, None, {})
        return None

    def _present(self, refs: Sequence[Ref]) -> tuple[Ref, ...]:
        """By what the columns are known now. On the lane."""

        def present(ref: Ref) -> Ref:
            try:
                self._refs.get(ref, ())
            except RefLost:
                return self._refs.restored(ref)
            return self._refs.current(ref)

        return tuple(map(present, refs))


class _Answers:
    """See `PromptRunner`."""

    def __init__(self, workers: RolloutWorkers, held_out: HeldOut) -> None:
        self._workers = workers
        self._held_out = held_out

    async def run_group(
        self,
        key: GroupKey,
        prompt: Prompt,
        start_version: Version,
        deadline: int,
        issue: int = 0,
        place: Place | None = None,
    ) -> Group:
        """See `EpisodeRunner.run_group`."""
        given = _assignment(key, prompt, start_version, deadline, issue, place)
        return await self._workers.answer(given, self._held_out)


def _assignment(
    key: GroupKey, prompt: Prompt, version: Version, deadline: int, issue: int, place: Place | None
) -> Assignment:
    home, only = (None, ()) if place is None else (place.home, place.only)
    return Assignment(key, prompt, version, deadline, issue, home, tuple(only))


Record = Callable[[Group], Awaitable[None]]


def recording_failed(workers: RolloutWorkers, record: Record) -> Callable[[GroupHeader], Awaitable[None]]:
    """Has `record` keep the samples that failed, which alone it looks at."""

    async def failed(header: GroupHeader) -> None:
        group = await workers.failed_of(header.key)
        if group is not None:
            await record(group)

    return failed
