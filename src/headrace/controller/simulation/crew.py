"""Simulated rollout workers: groups are aboard them, and are lost with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from headrace.engines.pool import Place
from headrace.experience.flow import NothingToTrain
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import Group, GroupKey
from headrace.roles.reissue import Blame, Losses
from headrace.roles.rollout import GroupRunner
from headrace.runtime.protocol import Runtime, WaitTimeout
from headrace.runtime.signal import Signal
from headrace.runtime.supervision import ROLLOUT_WORKER, Measure, after_failure
from headrace.runtime.workers import WorkerLost
from headrace.store import StoreError
from headrace.store.media.memory_files import PowerCut
from headrace.weights.version import Version

_WAIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class CrewFaults:
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
    """So long a worker that was lost goes on, as one does that only cannot be reached: what it finishes comes late."""


@dataclass(slots=True)
class _Worker:
    rank: int
    is_up: bool = True
    blame: Blame = field(default_factory=Blame)
    aboard: dict[GroupKey, asyncio.Future[str]] = field(default_factory=dict)
    """Each with what is told the reason, if the worker is lost."""
    only: GroupKey | None = None
    """Nothing else comes aboard."""


class SimulatedCrew:
    """A `GroupRunner`: each group is played as `runner` plays it, while its worker lives."""

    def __init__(
        self,
        runner: GroupRunner,
        losses: Losses,
        runtime: Runtime,
        faults: CrewFaults,
        took: Callable[[str, object], None],
        late: Callable[[Group], Awaitable[None]],
    ) -> None:
        """`took`: told of each loss that had groups aboard. `late`: awaited with a group that a lost worker brings."""
        self._late = late
        self._runner = runner
        self._losses = losses
        self._runtime = runtime
        self._faults = faults
        self._took = took
        self._workers = [_Worker(rank) for rank in range(faults.workers)]
        self._changed = Signal()
        self._given_up: NothingToTrain | None = None
        for at, rank in faults.deaths:
            if at > runtime.clock.now():
                runtime.spawn(self._die_at(at, self._workers[rank]), f"death of rollout worker {rank}")

    async def run_group(
        self, key: GroupKey, prompt: Prompt, start_version: Version, deadline: int, issue: int, place: Place | None
    ) -> Group:
        worker = await self._boarded(key)
        lost = worker.aboard[key]
        playing = self._runtime.spawn(
            self._runner.run_group(key, prompt, start_version, deadline, issue, place), f"{key} on {worker.rank}"
        )
        poisonous = (key.epoch, key.position) in self._faults.poison
        try:
            await asyncio.wait(
                {playing, lost},
                timeout=self._faults.poison_s if poisonous else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if poisonous and worker.aboard.get(key) is lost and not lost.done():
                self._took("poison", key)
                self._die(worker, f"group {key} ended it")
            if lost.done():
                raise WorkerLost(worker.rank, lost.result(), worker=f"rollout/{worker.rank}")
            worker.blame.finished()
            return playing.result()
        finally:
            if lost.done() and self._faults.lingers_s:
                self._runtime.spawn(self._linger(playing), f"{key} on {worker.rank}, which is lost")
            else:
                playing.cancel()
                await asyncio.gather(playing, return_exceptions=True)
            if worker.aboard.get(key) is lost:
                del worker.aboard[key]
            if worker.only == key:
                worker.only = None
            self._changed.notify()

    async def _boarded(self, key: GroupKey) -> _Worker:
        """The worker that is up and has fewest aboard; one of its own for a group that is to be alone."""
        alone = self._losses.is_alone(key)
        mine: _Worker | None = None
        try:
            while True:
                if self._given_up is not None:
                    raise self._given_up
                free = [one for one in self._workers if one.only in (None, key)]
                if alone and mine is None and free:
                    mine = min(free, key=lambda one: (not one.is_up, len(one.aboard), one.rank))
                    mine.only = key
                able = [mine] if mine is not None else free if not alone else []
                able = [one for one in able if one.is_up and not (alone and one.aboard)]
                if able:
                    worker = min(able, key=lambda one: (len(one.aboard), one.rank))
                    worker.aboard[key] = asyncio.get_running_loop().create_future()
                    self._changed.notify()
                    return worker
                await self._changed.wait(self._runtime.clock, _WAIT_S, f"a rollout worker for group {key}")
        except BaseException:
            if mine is not None:
                mine.only = None
                self._changed.notify()
            raise

    async def _linger(self, playing: asyncio.Task[Group]) -> None:
        try:
            async with asyncio.timeout(self._faults.lingers_s):
                await asyncio.wait([playing])
        except TimeoutError:
            pass
        finally:
            playing.cancel()
            (group,) = await asyncio.gather(playing, return_exceptions=True)
        if isinstance(group, Group):
            self._took("late result", group.key)
            with suppress(StoreError, PowerCut):  # it fails alone
                await self._late(group)

    async def _die_at(self, at: float, worker: _Worker) -> None:
        clock = self._runtime.clock
        await clock.sleep(at - clock.now())
        with suppress(WaitTimeout):
            await self._changed.wait_until(
                lambda: bool(worker.aboard) and not worker.blame.failures, clock, _WAIT_S, lambda: "something aboard"
            )
            self._took("worker", worker.rank)
            self._die(worker, "it died (a fault of the simulation)")

    def _die(self, worker: _Worker, why: str) -> None:
        worker.is_up = False
        aboard, worker.aboard = worker.aboard, {}
        failures = worker.blame.lost(aboard)
        for lost in aboard.values():
            lost.set_result(why)
        then = after_failure(ROLLOUT_WORKER, failures)
        if then.measure is Measure.RESTART:
            self._runtime.spawn(self._come_back(worker, then.pause_s), f"rollout worker {worker.rank} comes back")
        else:
            self._given_up = NothingToTrain(f"rollout worker {worker.rank} was lost {failures} times in a row")
            self._changed.notify()

    async def _come_back(self, worker: _Worker, pause_s: float) -> None:
        await self._runtime.clock.sleep(pause_s)
        worker.is_up = True
        self._changed.notify()
