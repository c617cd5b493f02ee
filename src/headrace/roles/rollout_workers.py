"""What is asked of rollout workers, and what becomes of a group whose worker is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, TypeVar

from headrace.config.evaluation import HeldOut
from headrace.engines.completions import NotServed
from headrace.engines.place import Place
from headrace.experience.columns import FinishedGroup, put_samples
from headrace.experience.failures import FailureKind, describe
from headrace.experience.header import GroupHeader, header_of
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.records.codec import CodecError, decode_group
from headrace.experience.records.restored_refs import RestoredRefs
from headrace.experience.sample import Group, GroupKey, SampleStatus
from headrace.observe.durations import Durations
from headrace.roles.abandoned import freed_if_left
from headrace.roles.reissue import Losses
from headrace.roles.rollout_seats import RolloutSeats, Seat
from headrace.roles.workers.rollout_types import Assignment, Played
from headrace.rollout.episode_scoring import empty_sample
from headrace.runtime import off_loop
from headrace.runtime.protocol import Runtime, WaitTimeout
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.workers import WorkerError, WorkerLost
from headrace.store import Receipt, RunStore
from headrace.store.errors import DiskFull, StoreError
from headrace.weights.version import Version

_SILENT_S = 120.0
"""In which a worker that plays says that it does: six times what it takes. Its loop may stand before."""
_JUDGE_TRIES = 4
LANE = "journal"

_ERRORS: dict[str, type[Exception]] = {kind.__name__: kind for kind in (NotServed, DiskFull, StoreError, CodecError)}
"""Of what a worker raises, those that are told as what they are."""

T = TypeVar("T")


class RolloutWorkers:
    """Plays groups as `EpisodeRunner` does. What a worker is lost with is in its journal, or was not finished:
    WorkerLost."""

    def __init__(
        self,
        seats: RolloutSeats,
        runtime: Runtime,
        store: RunStore,
        refs: RestoredRefs,
        losses: Losses,
        *,
        times: Durations,
        blocked_s: float,
    ) -> None:
        """`times`: takes the calls to rewards. `blocked_s`: for how long a worker's event loop may stand."""
        self._silent_s = blocked_s + _SILENT_S
        self._seats = seats
        self._workers = seats.workers
        self._runtime = runtime
        self._store = store
        self._refs = refs
        self._losses = losses
        self._times = times
        self._written: dict[GroupKey, Played] = {}
        """Of groups that have ended: until they are asked for."""

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
        async with self._seats.aboard(key) as seat:
            life, writer = seat.life, seat.writer
            self._store.ledger.assign(key, issue=issue, writer=writer)
            try:
                played = await self._last(seat, "play", given, what=f"group {key}")
            except asyncio.CancelledError:
                self._runtime.spawn(self._let_go(seat.rank, key, issue), f"group {key}, which was ended")
                raise
            except WorkerLost:
                await self._seats.gone(seat, life)
                reading = self._runtime.compute(LANE, self._journaled, key, issue, writer)
                found = await freed_if_left(self._runtime, self._refs, reading, f"group {key} in the journal")
                if found is None:
                    raise
                played = found
        assert isinstance(played, Played)
        self._seats.finished(seat)
        for seconds, count in played.reward_calls.items():
            self._times.counts[seconds] += count
        if played.receipt is not None:
            self._refs.note(played.refs, played.receipt.place)
        self._written[key] = played
        return played.header

    async def failed_of(self, key: GroupKey) -> Group | None:
        """Of a group that was just played, those samples that failed, if somebody keeps them."""
        failed = self._written[key].failed
        return None if failed is None else await self._runtime.compute(off_loop.LANE, decode_group, failed)

    async def write(self, header: GroupHeader) -> tuple[FinishedGroup, Receipt]:
        """What its worker has written of the group that was just played."""
        played = self._written.pop(header.key)
        assert played.receipt is not None
        return FinishedGroup(header, played.refs), played.receipt

    def let_go(self, key: GroupKey) -> None:
        """See `Journaling.let_go`."""
        played = self._written.pop(key, None)
        for ref in () if played is None else played.refs:
            self._refs.free(ref)

    async def _let_go(self, rank: int, key: GroupKey, issue: int) -> None:
        with suppress(WorkerLost, WaitTimeout):
            await self._workers.call("let_go", key, issue, rank=rank, what=f"group {key} to be let go")

    async def judge(self, header: GroupHeader, samples: Sequence[Ref], batch: int) -> tuple[str | None, list[str]]:
        """Why the finished group is dropped, and what filters failed with. Raises WorkerLost if workers were lost by
        it, again and again."""
        refs = tuple(samples)
        for attempt in range(1, _JUDGE_TRIES + 1):
            try:
                async with self._seats.aboard(header.key, keeper=refs[0].keeper if refs else "") as seat:
                    life = seat.life
                    answer = await self._workers.call(
                        "judge", header, refs, batch, rank=seat.rank, what=f"the filters on {header.key}"
                    )
                    reason, faults = answer[0]
                    return reason, list(faults)
            except WorkerLost as error:
                await self._seats.gone(seat, life)
                if attempt == _JUDGE_TRIES:
                    self._losses.blame(header.key)
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
                async with self._seats.aboard(given.key) as seat:
                    life = seat.life
                    encoded = await self._last(
                        seat, "answer", given, held_out.name, what=f"{held_out.name} {given.key}"
                    )
                self._seats.finished(seat)
                self._losses.ended(given.key)
                return await self._runtime.compute(off_loop.LANE, decode_group, bytes(encoded))
            except WorkerLost as error:
                if seat is not None:
                    await self._seats.gone(seat, life)
                if self._losses.lost(given.key):
                    self._losses.ended(given.key)
                    failure = describe(FailureKind.WORKER_LOST, str(error))
                    samples = tuple(
                        empty_sample(given.key, episode, SampleStatus.FAILED, failure)
                        for episode in range(held_out.samples)
                    )
                    return Group(given.key, given.prompt.prompt_id, given.version.number, given.deadline, samples)
                given = replace(given, issue=given.issue + 1)  # an engine may still have what that worker asked

    async def _last(self, seat: Seat, method: str, *args: Any, what: str) -> Any:
        """The last item of a stream that says now and then that it goes on."""
        last = None
        try:
            items: AsyncGenerator[Any, None] = self._workers.stream(
                method, *args, rank=seat.rank, what=what, seconds=self._silent_s
            )
            async with aclosing(items):
                async for item in items:
                    last = item
        except WaitTimeout as late:
            await self._workers.kill(seat.rank, f"nothing was heard of {what} for {self._silent_s:.0f} s")
            raise WorkerLost(seat.rank, str(late), worker=f"rollout/{seat.rank}") from late
        except WorkerError as error:
            if error.type in _ERRORS:
                raise _ERRORS[error.type](error.text) from error
            raise
        return last

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
