"""Simulated rollout workers: they play on simulated engines, and die. Whoever has them is the controller as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from headrace.controller.building.episode_runners import episode_runner
from headrace.controller.building.reward_pools import RewardPools
from headrace.controller.building.rollout_workers import RolloutHands, begun, least_samples
from headrace.controller.planning.plan import Plan
from headrace.engines.pool import EnginePool
from headrace.experience.columns import FinishedGroup
from headrace.experience.records.group_journal import GroupJournal
from headrace.experience.sample import GroupKey
from headrace.roles.workers.group_player import TRAINING, GroupPlayer
from headrace.roles.workers.rollout_types import ROLLOUT_TYPES, Assignment, Played
from headrace.runtime.local.local_refs import KeptHere
from headrace.runtime.protocol import Runtime, WaitTimeout
from headrace.runtime.signal import Signal
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host, Placement
from headrace.store import JournalWriter, Receipt, RunStore, StoreError
from headrace.store.media.files import Files
from headrace.store.media.memory_files import PowerCut
from headrace.weights.version import Version

_WAIT_S = 3600.0
_WHY = "it died (a fault of the simulation)"


@dataclass(frozen=True, slots=True)
class RolloutFaults:
    """What goes wrong with rollout workers."""

    workers: int = 0
    """How many there are; 0: groups are played in the controller."""
    deaths: tuple[tuple[float, int], ...] = ()
    """(second of the clock, rank): it dies then, or, with nothing aboard, as soon as something is; but not again before
    it has finished a group."""
    poison: tuple[tuple[int, int], ...] = ()
    """(epoch, position) of prompts that end any worker that plays them."""
    poison_s: float = 0.5
    """After so many seconds."""
    lingers_s: float = 0.0
    """So long a worker that was lost goes on, as one does that only cannot be reached: what it journals comes late."""


class _Mortal(Protocol):
    """A worker, in one of its lives."""

    rank: int
    is_lost: bool


@dataclass(slots=True)
class _Seat:
    worker: _Mortal | None = None
    aboard: set[GroupKey] = field(default_factory=set)
    has_finished: bool = True
    """A group, since one died here last."""


class _Fate:
    """What becomes of the workers."""

    def __init__(self, faults: RolloutFaults, runtime: Runtime, took: Callable[[str, object], None]) -> None:
        self._faults = faults
        self._runtime = runtime
        self._took = took
        self._seats = [_Seat() for _ in range(faults.workers)]
        self._changed = Signal()
        self._hands: RolloutHands | None = None

    def begin(self, hands: RolloutHands) -> None:
        """From now on they die."""
        self._hands = hands
        for at, rank in self._faults.deaths:
            if at > self._runtime.clock.now():
                self._runtime.spawn(self._die_at(at, rank), f"death of rollout worker {rank}")

    def begins(self, worker: _Mortal) -> None:
        seat = self._seats[worker.rank]
        seat.worker, seat.aboard = worker, set()

    def boards(self, worker: _Mortal, key: GroupKey) -> None:
        self._seats[worker.rank].aboard.add(key)
        self._changed.notify()
        if (key.epoch, key.position) in self._faults.poison:
            self._runtime.spawn(self._poisoned(worker, key), f"group {key} ends rollout worker {worker.rank}")

    def leaves(self, worker: _Mortal, key: GroupKey) -> None:
        if not worker.is_lost:
            self._seats[worker.rank].aboard.discard(key)

    def finished(self, worker: _Mortal) -> None:
        self._seats[worker.rank].has_finished = True
        self._changed.notify()

    async def _die_at(self, at: float, rank: int) -> None:
        clock, seat = self._runtime.clock, self._seats[rank]
        await clock.sleep(at - clock.now())
        with suppress(WaitTimeout):
            await self._changed.wait_until(
                lambda: bool(seat.aboard) and seat.has_finished, clock, _WAIT_S, lambda: "something aboard"
            )
            self._took("worker", rank)
            await self._end(rank, _WHY)

    async def _poisoned(self, worker: _Mortal, key: GroupKey) -> None:
        await self._runtime.clock.sleep(self._faults.poison_s)
        if not worker.is_lost and key in self._seats[worker.rank].aboard:
            self._took("poison", key)
            await self._end(worker.rank, f"group {key} ended it")

    async def _end(self, rank: int, why: str) -> None:
        seat = self._seats[rank]
        assert self._hands is not None
        assert seat.worker is not None
        seat.worker.is_lost, seat.has_finished, seat.aboard = True, False, set()
        await self._hands.seats.workers.kill(rank, why)


async def simulated_workers(
    plan: Plan,
    runtime: Runtime,
    store: RunStore,
    files: Files,
    engines: EnginePool,
    rewards: RewardPools,
    faults: RolloutFaults,
    took: Callable[[str, object], None],
    late: Callable[[FinishedGroup, Receipt], None],
    left: Callable[[int], None],
) -> RolloutHands:
    """`took`: told of each loss that had groups aboard, and of each group that a lost worker has journaled, which
    `late` is called with. `left`: told of the refs that a worker still has at its end."""
    fate = _Fate(faults, runtime, took)

    class Simulated(GroupPlayer):
        """It asks the run's engines, and plays in the run's own event loop."""

        kind: ClassVar[str] = "rollout"
        types: ClassVar[WireTypes] = ROLLOUT_TYPES

        def __init__(self, spec: object, host: Host) -> None:
            keeps_failed = plan.config.record.samples_per_batch != 0
            super().__init__(host, plan.filters, min_samples=least_samples(plan), keeps_failed=keeps_failed)
            self.rank = host.rank
            self.is_lost = False

        async def begin(self, writer: int, tokens: object) -> None:
            """See `RolloutWorker.begin`."""
            fate.begins(self)
            journal = JournalWriter(store.path / "journal", writer, files=files)
            self._journal = GroupJournal(journal, runtime, self._host.refs)
            self._runners[TRAINING] = episode_runner(plan, engines, runtime, rewards.training)
            for each in plan.config.held_out:
                self._runners[each.name] = episode_runner(plan, engines, runtime, rewards.of(each), each)

        async def go_back(self, begun: Version, last_kept: object) -> None:
            """The line is that of the controller's pool."""

        async def close(self) -> None:
            assert isinstance(self._host.refs, KeptHere)
            left(len(self._host.refs))

        async def _played(self, given: Assignment) -> Played:
            fate.boards(self, given.key)
            playing = runtime.spawn(super()._played(given), f"{given.key} on {self._host.name}")
            try:
                played = await asyncio.shield(playing)
            except asyncio.CancelledError:
                if self.is_lost and faults.lingers_s:
                    runtime.spawn(self._linger(playing, given.key), f"{given.key} on {self._host.name}, which is lost")
                else:
                    playing.cancel()
                    await asyncio.gather(playing, return_exceptions=True)
                raise
            finally:
                fate.leaves(self, given.key)
            fate.finished(self)
            return played

        async def _linger(self, playing: asyncio.Task[Played], key: GroupKey) -> None:
            try:
                async with asyncio.timeout(faults.lingers_s):
                    await asyncio.wait([playing])
            except TimeoutError:
                pass
            finally:
                playing.cancel()
                (played,) = await asyncio.gather(playing, return_exceptions=True)
            if isinstance(played, Played) and played.receipt is not None:
                took("late result", key)
                with suppress(StoreError, PowerCut):  # it fails alone
                    late(FinishedGroup(played.header, played.refs), played.receipt)

    hands = await begun(Simulated, range(faults.workers), Placement(), runtime, store, rewards)
    fate.begin(hands)
    return hands
