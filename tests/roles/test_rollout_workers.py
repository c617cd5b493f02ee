"""Who plays which group, and what becomes of it when a worker is lost: in virtual time, on scripted workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.engines.completions import NotServed
from headrace.experience.drops import NothingToTrain
from headrace.experience.header import GroupHeader
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.records.codec import encode_group
from headrace.experience.records.restored_refs import RestoredRefs
from headrace.experience.sample import Group, GroupKey, SampleStatus
from headrace.observe.durations import Durations
from headrace.roles.reissue import Losses
from headrace.roles.rollout_seats import RolloutSeats
from headrace.roles.rollout_workers import RolloutWorkers
from headrace.roles.workers.rollout_types import Assignment, Played
from headrace.rollout.episode_scoring import empty_sample
from headrace.runtime.placing import NoRoom
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.signal import Signal
from headrace.runtime.supervision import Often
from headrace.runtime.together import together
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import WorkerError, WorkerLost
from headrace.store import JournalOffset, Receipt, StoreError
from headrace.weights.version import INITIAL, Version

PROMPT = Prompt("p", "1+1=", {"prompt": "1+1="})
BLOCKED_S = 600.0
TOKENS = {"TOKEN": "swordfish"}


@dataclass
class Workers:
    """Each group takes a second; `kills` says which ones end the worker under them."""

    runtime: VirtualRuntime
    kills: Callable[[GroupKey], bool] = lambda key: False
    raises: WorkerError | None = None
    refs: tuple[Ref, ...] = ()
    """Of the columns of each group."""
    changed: Signal = field(default_factory=Signal)
    lost: dict[int, str] = field(default_factory=dict)
    aboard: dict[int, list[GroupKey]] = field(default_factory=lambda: {0: [], 1: []})
    seen: list[tuple[int, tuple[GroupKey, ...]]] = field(default_factory=list)
    """Each time that a group came aboard: who was."""
    begun: list[tuple[int, int]] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    """That workers had as they began."""
    calls: list[str] = field(default_factory=list)
    restart_s: float = 0.0
    clears_s: float = 0.0
    room_at: float = 0.0
    """When there is room for one that was lost; it is waited for 300 s."""
    tell_s: float = 0.0
    """That a worker takes to hear something."""
    closed: bool = False
    waits_s: float = 0.0
    """For an item of a stream."""

    async def call(self, method: str, *args: Any, rank: int, what: str, seconds: float | None = None) -> list[Any]:
        if method == "begin":
            self.begun.append((rank, args[0]))
            self.tokens.append(args[1])
            if rank in self.lost:
                raise WorkerLost(rank, self.lost[rank])
        elif method == "go_back":
            if rank in self.lost:
                raise WorkerLost(rank, self.lost[rank])
            self.calls.append(f"{rank} goes on from {args[0]}")
            await self.runtime.clock.sleep(self.tell_s)
        elif method == "engines_changed":
            self.calls.append(f"{rank} has {len(args[0])} engines")
            await self.runtime.clock.sleep(self.tell_s)
        elif method == "let_go":
            self.calls.append(f"{rank} lets go of {args[0]}, issue {args[1]}")
        return [None]

    async def stream(
        self, method: str, *args: Any, rank: int, what: str, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        given: Assignment = args[0]
        self.waits_s = seconds or 0.0
        if self.raises is not None:
            raise self.raises
        if rank in self.lost:
            raise WorkerLost(rank, self.lost[rank])
        self.aboard[rank].append(given.key)
        self.seen.append((rank, tuple(self.aboard[rank])))
        try:
            for _ in range(10):
                await self.runtime.clock.sleep(0.1)
                if rank in self.lost:
                    raise WorkerLost(rank, self.lost[rank])
                if self.kills(given.key):
                    self.lost[rank] = "exit code 3"
                    self.changed.notify()
                    raise WorkerLost(rank, "exit code 3")
            yield None
            header = GroupHeader(given.key, "p", 0, 2, (), given.issue)
            receipt = Receipt(given.key, given.issue, JournalOffset(1, 0, 9, rank + 1)) if self.refs else None
            yield Played(header, self.refs, receipt, None, {"1": 2})
        finally:
            self.aboard[rank].remove(given.key)

    async def leave(self, rank: int) -> None:
        self.calls.append(f"{rank} leaves with {len(self.aboard[rank])} aboard")

    async def cleared(self, rank: int) -> None:
        await self.runtime.clock.sleep(self.clears_s)

    async def restart(self, rank: int) -> None:
        self.calls.append(f"restart {rank}")
        await self.runtime.clock.sleep(self.restart_s)
        if self.runtime.clock.now() < self.room_at:
            await self.runtime.clock.sleep(300.0)
            raise WorkerLost(rank, "no node has a free processor") from NoRoom("no node has a free processor")
        if self.closed:
            raise WorkerLost(rank, "it was closed")
        self.lost.pop(rank, None)
        self.changed.notify()

    async def close(self) -> None:
        self.closed = True


class Ledger:
    def __init__(self) -> None:
        self.assigned: list[tuple[GroupKey, int, int]] = []

    def assign(self, key: GroupKey, *, issue: int, writer: int) -> None:
        self.assigned.append((key, issue, writer))


class Writers:
    def __init__(self) -> None:
        self.begun, self.at_work = 0, set[int]()

    def begin(self) -> int:
        self.begun += 1
        self.at_work.add(self.begun)
        return self.begun

    def end(self, writer: int) -> None:
        self.at_work.remove(writer)


class Journal:
    def written(self, writer: int) -> list[Any]:
        return []


class Store:
    def __init__(self) -> None:
        self.ledger, self.journal, self.writers = Ledger(), Journal(), Writers()


def key(position: int) -> GroupKey:
    return GroupKey(0, position, 0)


def played_by(
    test: Callable[[RolloutWorkers, Workers, Losses, Store], Coroutine[Any, Any, None]],
    *,
    often: Often | None = None,
    **of_workers: Any,
) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        workers, losses, store = Workers(runtime, **of_workers), Losses(), Store()
        refs = RestoredRefs(runtime.refs, lambda place: b"")
        seats = RolloutSeats(workers, 2, runtime, store.writers, losses, often)  # type: ignore[arg-type]
        seats.tokens = TOKENS
        await seats.begin()
        made: Any = RolloutWorkers
        runner = made(seats, runtime, store, refs, losses, times=Durations(), blocked_s=BLOCKED_S)
        await test(runner, workers, losses, store)

    run_virtually(main)


async def group(runner: RolloutWorkers, position: int, issue: int = 0) -> GroupHeader:
    return await runner.run_group(key(position), PROMPT, INITIAL, 2, issue)


def test_a_group_goes_where_least_is_aboard_and_is_journaled_by_that_worker() -> None:
    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        headers = await together(group(runner, each) for each in range(4))
        assert [header.key for header in headers] == [key(each) for each in range(4)]
        assert workers.begun == [(0, 1), (1, 2)]
        assert [(each, writer) for each, _, writer in store.ledger.assigned] == [
            (key(0), 1),
            (key(1), 2),
            (key(2), 1),
            (key(3), 2),
        ]

    played_by(test)


def test_it_is_waited_for_longer_than_a_workers_loop_may_stand() -> None:
    """`rollout.block_timeout_s` says when one is ended whose loop stands."""

    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        await group(runner, 0)
        assert workers.waits_s > BLOCKED_S

    played_by(test)


def test_a_worker_that_is_lost_before_it_begins_is_made_anew() -> None:
    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        assert workers.calls == ["restart 1"]
        assert workers.begun == [(0, 1), (1, 2), (1, 3)]

    played_by(test, lost={1: "its node is gone"})


def test_all_that_was_aboard_is_lost_and_the_worker_comes_back_as_another_writer() -> None:
    dead: list[GroupKey] = []

    def kills(at: GroupKey) -> bool:
        if at == key(0) and not dead:
            dead.append(at)
            return True
        return False

    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        ended = await asyncio.gather(*(group(runner, each) for each in range(4)), return_exceptions=True)
        assert [isinstance(each, WorkerLost) for each in ended] == [True, False, True, False]
        assert workers.calls == ["restart 0"]
        assert workers.begun == [(0, 1), (1, 2), (0, 3)]
        assert workers.tokens == [TOKENS] * 3
        assert store.writers.at_work == {2, 3}
        assert (await group(runner, 0, 1)).issue == 1
        assert store.ledger.assigned[-1] == (key(0), 1, 3)

    played_by(test, kills=kills)


def test_all_workers_are_told_where_the_run_goes_on_and_who_comes_back_too() -> None:
    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        workers.lost[1] = "exit code 3"
        await runner._seats.go_back(Version(1, 5), {0: 5})
        assert workers.calls == ["0 goes on from v5~1"]
        workers.changed.notify()
        await runner._runtime.clock.sleep(5.0)
        assert workers.calls[1:] == ["restart 1", "1 goes on from v5~1"]

    played_by(test)


def test_who_comes_back_hears_what_changes_meanwhile_once() -> None:
    handles: Any = [object(), object()]

    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        seats, clock = runner._seats, runner._runtime.clock
        await seats.go_back(Version(1, 5), {0: 5})
        await seats.engines_changed(handles[:1], ())
        workers.calls.clear()
        workers.tell_s, workers.lost[0] = 10.0, "exit code 3"
        workers.changed.notify()
        while "0 has 1 engines" not in workers.calls:
            await clock.sleep(1.0)
        going = asyncio.ensure_future(seats.go_back(Version(2, 4), {0: 4}))
        changing = asyncio.ensure_future(seats.engines_changed(handles, ()))
        await asyncio.gather(going, changing)
        await clock.sleep(60.0)
        assert [call for call in workers.calls if call.startswith("0 ")] == [
            "0 goes on from v5~1",
            "0 has 1 engines",
            "0 goes on from v4~2",
            "0 has 2 engines",
        ]

    played_by(test)


def test_a_worker_leaves_once_it_has_played_what_is_aboard_and_one_that_is_lost_comes_back_first() -> None:
    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        playing = [asyncio.ensure_future(group(runner, each)) for each in range(4)]
        await runner._runtime.clock.sleep(0.5)
        leaving = asyncio.ensure_future(runner._seats.leave())
        await runner._runtime.clock.sleep(0.1)
        workers.lost[1] = "exit code 3"
        workers.changed.notify()
        ended = await asyncio.gather(*playing, return_exceptions=True)
        assert [isinstance(each, WorkerLost) for each in ended] == [False, True, False, True]
        await leaving
        assert workers.calls == ["restart 1", "1 leaves with 0 aboard"]
        assert runner._seats.count == 1
        await together(group(runner, each, 1) for each in (1, 3))
        assert {rank for rank, _ in workers.seen[4:]} == {0}, "nothing more comes aboard it"

    played_by(test)


def test_a_worker_that_leaves_plays_on() -> None:
    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        playing = [asyncio.ensure_future(group(runner, each)) for each in range(2)]
        await runner._runtime.clock.sleep(0.5)
        await runner._seats.leave()
        assert workers.calls == ["1 leaves with 0 aboard"]
        assert store.writers.at_work == {1}
        assert [header.key for header in await asyncio.gather(*playing)] == [key(0), key(1)]

    played_by(test)


@pytest.mark.parametrize("is_late", [True, False])
def test_a_worker_that_could_not_leave_stays_and_plays(*, is_late: bool) -> None:
    """What it has aboard takes too long, or whoever asked has gone."""

    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        seats, clock = runner._seats, runner._runtime.clock
        async with seats.aboard(key(0)), seats.aboard(key(1)) as seat:
            assert seat.rank == 1
            waiting = asyncio.ensure_future(seats.leave())
            await clock.sleep(4000.0 if is_late else 1.0)
            waiting.cancel()
            (ended,) = await asyncio.gather(waiting, return_exceptions=True)
            assert isinstance(ended, WaitTimeout if is_late else asyncio.CancelledError)
            assert seats.count == 2
            await together(group(runner, each) for each in (2, 3))
            assert {rank for rank, _ in workers.seen} == {0, 1}
        await seats.leave()
        assert seats.count == 1
        assert workers.calls == ["1 leaves with 0 aboard"]

    played_by(test)


def test_what_waits_for_a_worker_has_one_that_could_not_leave() -> None:
    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        seats, clock = runner._seats, runner._runtime.clock
        losses.lost(key(7))
        losses.lost(key(7))
        async with seats.aboard(key(7)), seats.aboard(key(1)):
            leaving = asyncio.ensure_future(seats.leave())
            await clock.sleep(1.0)
            playing = asyncio.ensure_future(group(runner, 2))
            await clock.sleep(1.0)
            assert not workers.seen, "the one is for a group alone, and the other leaves"
            leaving.cancel()
            await playing
            assert workers.seen == [(1, (key(2),))]

    played_by(test)


def test_a_group_that_was_aboard_twice_is_played_alone() -> None:
    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        losses.lost(key(7))
        losses.lost(key(7))
        await together([*(group(runner, each) for each in range(4)), group(runner, 7), group(runner, 8)])
        with_it = [aboard for _, aboard in workers.seen if key(7) in aboard]
        assert with_it == [(key(7),)]
        assert (1, (key(1), key(3), key(8))) in workers.seen, "others go on elsewhere, and do not wait"

    played_by(test)


def test_of_a_group_that_is_ended_nobody_keeps_the_columns() -> None:
    """Its worker may have finished it at that very moment; and whoever ended it may have had its answer."""

    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        clock = runner._runtime.clock
        running = asyncio.create_task(group(runner, 0, 3))
        await clock.sleep(0.55)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await clock.sleep(1.0)
        assert workers.calls == [f"0 lets go of {key(0)}, issue 3"]
        ref = runner._runtime.put({"tokens": [1]})
        workers.refs = (ref,)
        await group(runner, 1)
        runner.let_go(key(1))
        with pytest.raises(RefLost):
            await runner._runtime.get(ref)
        workers.refs = (runner._runtime.put({"tokens": [1]}),)
        finished, _ = await runner.write(await group(runner, 2))
        runner.let_go(key(2))
        assert await runner._runtime.get(finished.refs[0]) == {"tokens": [1]}, "what was written is the table's"

    played_by(test)


def test_of_a_group_that_is_ended_while_the_journal_is_read_for_it_nobody_keeps_the_columns() -> None:
    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        def written(writer: int) -> list[Receipt]:
            workers.runtime.charge(5.0)
            return [Receipt(key(0), 0, JournalOffset(1, 0, 9, writer))]

        samples = tuple(empty_sample(key(0), episode, SampleStatus.COMPLETED, "") for episode in range(2))
        store.journal.written = written  # type: ignore[method-assign]
        store.journal.read = lambda place: encode_group(Group(key(0), "p", 0, 2, samples))  # type: ignore[attr-defined]
        playing = asyncio.ensure_future(group(runner, 0))
        clock = workers.runtime.clock
        while not workers.calls:  # the worker is lost, and comes back
            await clock.sleep(0.5)
        await clock.sleep(2.0)
        playing.cancel()
        await asyncio.wait([playing])
        await clock.sleep(10.0)
        assert playing.cancelled()
        assert workers.runtime.kept == 0

    killed: list[GroupKey] = []
    played_by(test, kills=lambda key: not killed and killed.append(key) is None)


def test_where_there_is_no_room_for_one_that_was_lost_the_others_play_what_it_had() -> None:
    """As where its node is gone, and all others are full: for hours, in which it comes to no loss more."""
    killed: list[GroupKey] = []

    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        playing = [asyncio.ensure_future(group(runner, position)) for position in range(2)]
        with pytest.raises(WorkerLost):
            await playing[0]
        assert workers.runtime.clock.now() < 30, "once nothing is left of it"
        assert (await group(runner, 0, issue=1)).key == key(0)
        await playing[1]
        while workers.runtime.clock.now() < 3 * 3600:
            await group(runner, 2)
        assert {rank for rank, _ in workers.seen[1:]} == {1}
        workers.room_at = 0.0
        await workers.runtime.clock.sleep(301.0)
        await together(group(runner, position) for position in (3, 4))
        assert {rank for rank, _ in workers.seen[-2:]} == {0, 1}

    played_by(test, kills=lambda key: not killed and killed.append(key) is None, clears_s=20.0, room_at=1e9)


def test_a_worker_that_is_lost_too_often_in_a_row_ends_the_run() -> None:
    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        told: list[str] = []
        runner._seats.tell = lambda kind, data: told.append(kind)

        async def again_and_again() -> None:
            for issue in range(40):
                with contextlib.suppress(WorkerLost):
                    await group(runner, issue)

        with pytest.raises(NothingToTrain, match=r"lost 8 times in a row, the last time so: exit code 3; mend that"):
            await again_and_again()
        assert set(told) == {"worker_lost"}

    played_by(test, kills=lambda at: True)


def test_a_worker_that_is_being_made_anew_as_the_run_ends_is_not_told_to_be_lost_again() -> None:
    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        told: list[str] = []
        runner._seats.tell = lambda kind, data: told.append(data["message"])
        playing = asyncio.ensure_future(group(runner, 0))
        clock = workers.runtime.clock
        while not workers.calls:
            await clock.sleep(0.5)
        await runner._seats.close()
        await clock.sleep(60.0)
        playing.cancel()
        await asyncio.wait([playing])
        assert told == ["rollout/0 is made anew: exit code 3"]
        assert workers.calls == ["restart 0"]

    killed: list[GroupKey] = []
    played_by(test, kills=lambda key: not killed and killed.append(key) is None, restart_s=20.0)


def test_a_worker_that_is_lost_too_often_within_a_time_ends_the_run_though_it_finishes_groups_between() -> None:
    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        async def again_and_again() -> None:
            for number in range(0, 40, 2):
                await group(runner, number)
                with contextlib.suppress(WorkerLost):
                    await group(runner, number + 1)

        with pytest.raises(NothingToTrain, match=r"lost 3 times within 600 s \(runtime\.restarts\.workers\)"):
            await again_and_again()
        assert workers.calls == ["restart 0"] * 2

    played_by(test, kills=lambda at: at.position % 2 == 1, often=Often(3, 600.0))


def test_prompts_that_are_the_reason_of_losses_do_not_end_the_run_however_many_they_are() -> None:
    """Each of them is aboard three times, beside one that is not, and is left out then."""

    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        for poison in range(1, 40, 2):
            for issue in range(3):
                with pytest.raises(WorkerLost):
                    await group(runner, poison, issue)
                assert losses.lost(key(poison)) == (issue == 2)
            await group(runner, poison + 1)
        await workers.runtime.clock.sleep(60.0)  # until the last one is back
        assert len(workers.calls) == 60

    played_by(test, kills=lambda at: at.position % 2 == 1, often=Often(4, 1e6))


def test_a_prompt_that_ends_its_worker_each_time_does_not_end_the_run() -> None:
    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        for issue in range(40):
            with pytest.raises(WorkerLost):
                await group(runner, 0, issue)

    played_by(test, kills=lambda at: True)


def test_a_loss_that_cannot_be_recorded_ends_the_run() -> None:
    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        def full(kind: str, data: object) -> None:
            raise StoreError("no space left")

        runner._seats.tell = full
        with pytest.raises(StoreError, match="no space left"):
            await group(runner, 0)

    played_by(test, kills=lambda at: True)


def test_what_a_worker_raises_is_told_as_what_it_is() -> None:
    async def test(runner: RolloutWorkers, workers: Workers, losses: Losses, store: Store) -> None:
        with pytest.raises(NotServed, match="no engine came"):
            await group(runner, 0)

    played_by(test, raises=WorkerError(0, "NotServed", "no engine came"))
