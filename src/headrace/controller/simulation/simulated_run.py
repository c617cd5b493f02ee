"""Whole runs in virtual time: the controller as it is, between simulated parts, on a disk that may fail."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from headrace.config import TrainConfig
from headrace.controller.begin import Begin
from headrace.controller.planning.plan import Plan
from headrace.controller.simulation.hazards import Hazards, TrainingFaults
from headrace.controller.simulation.machine import DiskFaults, Machine, Trace
from headrace.controller.simulation.outside import Costs, SimulatedOutside
from headrace.controller.simulation.plan import simulated_plan
from headrace.controller.simulation.simulated_functions import FunctionsFaults
from headrace.controller.simulation.simulated_rollouts import RolloutFaults
from headrace.controller.stopping import StopRequest
from headrace.controller.train import Ended, train
from headrace.engines.simulated_costs import EngineFaults
from headrace.experience.columns import COLUMN_TYPES
from headrace.observe.run_record import RunRecord, RunWatcher
from headrace.runtime.virtual import VirtualClock, VirtualRuntime, run_virtually
from headrace.store import Counts, RunReader
from headrace.store.media.memory_files import MemoryFiles, PowerCut
from headrace.training.simulated import TrainedState

FOLDER = Path("/run")
_MOST_LIVES = 20


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong in a run, and when. Engines and rollout workers die by the seconds for which the machine was on:
    what falls into a time without power comes so much later."""

    engine: tuple[EngineFaults, ...] = ()
    """Of the first engine in each life of the run: a run that fails is resumed."""
    engines: Mapping[int, EngineFaults] = field(default_factory=dict)
    """By index, of the others and, where `engine` has none, of the first."""
    rollout: RolloutFaults = RolloutFaults()  # noqa: RUF009 (frozen)
    functions: FunctionsFaults = FunctionsFaults()  # noqa: RUF009 (frozen)
    training: TrainingFaults = TrainingFaults()  # noqa: RUF009 (frozen)
    columns_lost: tuple[float, ...] = ()
    """Seconds of the clock at which all columns are lost, whoever keeps them."""
    disk: DiskFaults = DiskFaults()  # noqa: RUF009 (frozen)
    power_cuts_at: tuple[float, ...] = ()
    """Seconds of the clock."""
    power_cuts_after: tuple[int, ...] = ()
    """Operations of the store, counted from the beginning of each life: the first number is of the first life."""
    restart_s: float = 60.0
    """From the end of a life to the next one."""


@dataclass(frozen=True, slots=True)
class Life:
    """What one process made of the run."""

    begun_at: float
    ended_at: float
    end: str
    """`finished`, `stopped`, `power cut`, or an error's name and words."""


@dataclass(frozen=True, slots=True)
class Outcome:
    lives: tuple[Life, ...]
    seconds: float
    """Of virtual time."""
    trace_hash: str
    """Of all that was decided, recorded and written, with the time of each; equal for equal arguments."""
    trace: tuple[str, ...]
    """The same in words, if it was asked for."""
    counts: Counts
    record: RunRecord
    state: TrainedState
    """Of the last life's trainer."""
    files: MemoryFiles
    """The run's, in `FOLDER`."""
    refs_left: int
    """That nobody freed, though nobody can ask for them any more."""
    critic: TrainedState | None
    """As `state`; None where there is no critic."""
    took: Mapping[str, int]
    """Which faults took effect, and how often."""
    broken: tuple[str, ...]
    """What of the law and the bound did not hold at some moment."""

    @property
    def status(self) -> str:
        return self.lives[-1].end


def simulate(
    config: TrainConfig,
    seed: int,
    faults: Faults = Faults(),
    *,
    costs: Costs = Costs(),  # noqa: B008 (frozen)
    prompts: int = 1_000,
    keeps_trace: bool = False,
    limit_s: float | None = None,
) -> Outcome:
    """The run of `config`, from its beginning until it finishes, whatever happens on the way. It follows from the
    arguments alone. Raises Deadlock, Livelock, ConfigError, the last error of a run that does not get on, and
    TimeoutError for one that takes more than `limit_s` of virtual time."""
    config = config.model_copy(update={"seed": seed})
    plan = simulated_plan(
        config,
        prompts=prompts,
        slots=costs.engine.slots,
        max_context=costs.engine.max_context,
        vocab_size=costs.answers.vocab_size,
    )

    async def run(runtime: VirtualRuntime) -> Outcome:
        async with asyncio.timeout_at(limit_s):
            return await _Run(plan, faults, costs, runtime.clock, keeps_trace).to_its_end()

    return run_virtually(run)


class _Run:
    def __init__(self, plan: Plan, faults: Faults, costs: Costs, clock: VirtualClock, keeps_trace: bool) -> None:
        self._plan = plan
        self._faults = faults
        self._costs = costs
        self._clock = clock
        self._trace = Trace(clock.now, keeps_trace)
        self._draw = np.random.default_rng(plan.config.seed).integers
        self._files = MemoryFiles()
        self._lives: list[Life] = []
        self._off_s = 0.0
        """How long the machine was off."""
        self._refs_left = 0
        self._state = TrainedState(0, 0, 0, 0, 0)
        self._critic: TrainedState | None = None
        self._hazards = Hazards(faults.training)

    async def to_its_end(self) -> Outcome:
        asyncio.get_running_loop().set_exception_handler(_without_power_cuts)
        self._files.make_folder(FOLDER)
        self._files.sync(Path("/"))
        while not self._lives or self._lives[-1].end != "finished":
            if len(self._lives) == _MOST_LIVES:
                raise RuntimeError(f"the run did not finish in {_MOST_LIVES} lives: {self._lives[-1].end}")
            if self._lives:
                await self._clock.sleep(self._faults.restart_s)
                self._off_s += self._faults.restart_s
            await self._live()
        with RunReader(FOLDER, self._files) as reader:
            return Outcome(
                tuple(self._lives),
                self._clock.now(),
                self._trace.hash,
                tuple(self._trace.lines),
                reader.counts(),
                RunWatcher(reader).read(),
                self._state,
                self._files,
                self._refs_left,
                self._critic,
                dict(sorted(self._hazards.took.items())),
                tuple(self._hazards.broken),
            )

    async def _live(self) -> None:
        """One process, from its start to its end."""
        number, began = len(self._lives), self._clock.now()
        runtime = VirtualRuntime(self._clock, types=COLUMN_TYPES)
        took = self._hazards.took
        life = Machine(
            self._clock.now,
            self._trace,
            runtime.charge,
            self._costs.disk,
            self._faults.disk,
            self._count_of(number),
            lambda fault: took.update([fault]),
        )
        files = self._files = self._files.after_power_cut(self._lost, life.told)
        begin: Begin = "resume" if files.is_file(FOLDER / "run.db") else "new"
        engines = {
            index: _left(one, self._off_s, began) if number else one for index, one in self._faults.engines.items()
        }
        if number < len(self._faults.engine):
            engines[0] = self._faults.engine[number]
        rollout = self._faults.rollout
        outside = SimulatedOutside(
            runtime,
            files,
            self._costs,
            engines,
            replace(rollout, deaths=tuple((at + self._off_s, rank) for at, rank in rollout.deaths)),
            self._hazards,
            functions=self._faults.functions,
            columns_lost=self._faults.columns_lost,
            is_on=lambda: not life.off.is_set(),
            watch=life.heard,
        )
        self._trace.add("begins", begin)
        running = asyncio.create_task(
            train(self._plan, FOLDER, begin, stop=StopRequest(signals=()), outside=outside), name="run"
        )
        end = await self._see_to_its_end(running, life)
        self._hazards.ended()
        if outside.trained:
            self._state = outside.trained["trainer"].state
            critic = outside.trained.get("critic")
            self._critic = None if critic is None else critic.state
        self._refs_left = runtime.kept + outside.refs_left
        self._trace.add("ends", end)
        self._lives.append(Life(began, self._clock.now(), end))

    async def _see_to_its_end(self, running: asyncio.Task[Ended], life: Machine) -> str:
        cut = asyncio.create_task(life.off.wait(), name="power cut")
        at = next((at for at in self._faults.power_cuts_at if at > self._clock.now()), None)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(at):
                await asyncio.wait([running, cut], return_when=asyncio.FIRST_COMPLETED)
        cut.cancel()
        if running.done() and not life.off.is_set():
            error = running.exception()
            return running.result().status if error is None else f"{type(error).__name__}: {error}"
        life.switch_off()
        self._hazards.took["power cut"] += 1
        running.cancel()
        await asyncio.gather(running, cut, return_exceptions=True)
        return "power cut"

    def _count_of(self, number: int) -> int | None:
        counts = self._faults.power_cuts_after
        return counts[number] if number < len(counts) else None

    def _lost(self, count: int) -> int:
        return int(self._draw(count))


def _without_power_cuts(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Of what ended with the machine, nobody is told."""
    if not isinstance(context.get("exception"), PowerCut):
        loop.default_exception_handler(context)


def _left(faults: EngineFaults, off_s: float, now: float) -> EngineFaults:
    """Those of a later life: what has come does not come again."""
    dies_at = None if faults.dies_at is None else faults.dies_at + off_s
    if dies_at is not None and dies_at <= now:
        dies_at = None
    return replace(faults, dies_at=dies_at, failing_swaps=frozenset())
