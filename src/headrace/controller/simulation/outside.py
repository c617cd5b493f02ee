"""What a simulated run gets from outside: parts that charge modelled seconds on a virtual clock."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from headrace.algorithms.kl_controllers import KLCoefficient
from headrace.config.model import PolicyEngineConfig
from headrace.config.track import TrackerSection
from headrace.controller.building.models import Models
from headrace.controller.building.reward_pools import RewardPools
from headrace.controller.building.rollout_workers import RolloutHands
from headrace.controller.building.wiring import Parts
from headrace.controller.control_socket import Answer
from headrace.controller.planning.plan import Plan
from headrace.controller.simulation.hazards import Hazards
from headrace.controller.simulation.machine import DiskCosts
from headrace.controller.simulation.simulated_functions import FunctionsFaults, simulated_functions
from headrace.controller.simulation.simulated_ground import SimulatedGround
from headrace.controller.simulation.simulated_rollouts import RolloutFaults, simulated_workers
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import Engine
from headrace.engines.simulated import SimulatedEngine
from headrace.engines.simulated_answers import Answers
from headrace.engines.simulated_costs import NO_FAULTS, EngineCosts, EngineFaults
from headrace.experience.columns import FinishedGroup
from headrace.observe.events import EventSink
from headrace.rewards.judge import Ask
from headrace.rewards.simulated import RewardCosts, SimulatedRewards
from headrace.roles.columns.frozen import OnLane
from headrace.roles.workers.functions import FunctionsWorker
from headrace.runtime.ground import Ground
from headrace.runtime.inline import Span
from headrace.runtime.protocol import Clock, Runtime
from headrace.runtime.virtual import VirtualRuntime
from headrace.runtime.workers import Workers
from headrace.store import IllegalTransition, Receipt, RunStore
from headrace.store.media.files import Files
from headrace.training.group import TrainerGroup
from headrace.training.rank import TrainerRank
from headrace.training.rank_task import policy_task, value_task
from headrace.training.rank_workers import RankHere
from headrace.training.simulated import SimulatedReference, SimulatedScorer, SimulatedTrainer, TrainerCosts
from headrace.weights.plane import WeightReceiver
from headrace.weights.seen import CPU
from headrace.weights.version import INITIAL, Lineage, Version

NO_FUNCTIONS_FAULTS = FunctionsFaults()
Watch = Callable[[str, object], None]
_RENEW_S = 5.0
"""In which a trainer is made anew."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What everything takes, and how long answers are."""

    engine: EngineCosts = field(default_factory=EngineCosts)
    answers: Answers = field(default_factory=Answers)
    trainer: TrainerCosts = field(default_factory=TrainerCosts)
    critic: TrainerCosts = field(default_factory=TrainerCosts)
    rewards: RewardCosts = field(default_factory=RewardCosts)
    disk: DiskCosts = field(default_factory=DiskCosts)


class SimulatedOutside:
    """An `Outside`: no thread, process, socket, model or file."""

    def __init__(
        self,
        runtime: VirtualRuntime,
        files: Files,
        costs: Costs,
        engine_faults: Mapping[int, EngineFaults],
        rollout_faults: RolloutFaults,
        hazards: Hazards,
        *,
        functions: FunctionsFaults = NO_FUNCTIONS_FAULTS,
        columns_lost: Sequence[float] = (),
        is_on: Callable[[], bool],
        interrupts: bool = False,
        watch: Watch = lambda word, what: None,
    ) -> None:
        """`engine_faults`: of the engines of these indices. `columns_lost`: see `SimulatedGround`; the run stands on
        nothing that can be lost where there are none. `is_on`: the machine. `interrupts`: see `SimulatedEngine`.
        `watch` is told what models do."""
        self._is_on = is_on
        self._rollout_faults = rollout_faults
        self.refs_left = 0
        """Of rollout workers, when they ended: of rows that nobody has any more."""
        self._parts: Parts | None = None
        self._functions_faults = functions
        self._hazards = hazards
        self.files = files
        self.trained: dict[str, SimulatedTrainer] = {}
        """By the name of their group."""
        self._runtime = runtime
        self._ground: SimulatedGround | None = None
        if columns_lost:
            self._ground = SimulatedGround(runtime, columns_lost, lambda: hazards.took.update(["columns lost"]))
        self._costs = costs
        self._engine_faults = engine_faults
        self._interrupts = interrupts
        self._watch = watch

    def runtime(self, plan: Plan, folder: Path, trace: Callable[[Span], None] | None) -> Runtime:
        torch.set_num_threads(1)  # teams of threads cost more than such small tensors are worth
        return self._runtime

    async def models(self, plan: Plan, runtime: Runtime, folder: Path) -> Models:
        config, algorithm, costs = plan.config, plan.config.algorithm, self._costs
        charge = self._runtime.charge
        trainer = SimulatedTrainer(
            self.files,
            charge,
            costs.trainer,
            lr=config.trainer.optimizer.lr,
            watch=self._hazards.trainer("actor", self._watch),
        )

        def scorer(name: str, *, follows: bool = False) -> OnLane:
            return OnLane(SimulatedScorer(self.files, charge, costs.trainer, follows=follows), name, runtime)

        task = policy_task(trainer, runtime.refs, algorithm, own_proximal=config.own_proximal)
        kept = SimulatedReference(trainer, self.files)
        device = torch.device(CPU)
        policy = await _group("trainer", TrainerRank(trainer, runtime, task, reference=kept, device=device), runtime)
        models = Models(
            policy, self._engines(config.engine, runtime), KLCoefficient(algorithm.kl, plan.pieces.kl_controller)
        )
        self.trained = {"trainer": trainer}
        if algorithm.needs_critic:
            told = self._hazards.trainer("critic", lambda word, what: None)
            critic = SimulatedTrainer(self.files, charge, costs.critic, lr=config.critic.optimizer.lr, watch=told)
            self.trained["critic"] = critic
            rank = TrainerRank(critic, runtime, value_task(critic, runtime.refs, algorithm), device=device)
            models = replace(models, critic=await _group("critic", rank, runtime))
        if algorithm.needs_reference and config.reference.placement != "hybrid":
            models = replace(models, reference=scorer("reference"))
        if algorithm.needs_reference and config.reference.refresh_every is not None:
            models = replace(models, refreshed=models.reference or policy.kept_reference)
        if config.copies_proximal:
            models = replace(models, proximal=scorer("proximal", follows=True))
        if algorithm.needs_teacher:
            models = replace(models, teacher=scorer("teacher"))
        renew = {name: partial(self._renewed, each, runtime) for name, each in self.trained.items()}
        return replace(models, renew=renew)

    async def _renewed(self, trainer: SimulatedTrainer, runtime: Runtime) -> None:
        await runtime.clock.sleep(_RENEW_S)
        trainer.renew()

    def _engines(self, config: PolicyEngineConfig, runtime: Runtime) -> EnginePool:
        """Those that come in the place of a dead one have no faults."""

        def made(faults: EngineFaults, version: Version = INITIAL) -> SimulatedEngine:
            costs = self._costs
            return SimulatedEngine(
                runtime,
                costs.engine,
                costs.answers,
                faults,
                interrupts=self._interrupts,
                watch=self._told,
                version=version,
            )

        async def successor(dead: Engine, receiver: WeightReceiver | None) -> Engine:
            assert receiver is not None
            manifest, _ = await runtime.compute("weights", receiver.receive)
            again = made(NO_FAULTS, manifest.version)
            await again.start()
            return again

        return EnginePool(
            [made(self._engine_faults.get(index, NO_FAULTS)) for index in range(config.replicas + config.lent)],
            runtime.clock,
            revive=successor,
            return_deadline_s=config.return_deadline_s,
            spread=config.spread,
            lent=config.lent,
        )

    def _told(self, word: str, what: object) -> None:
        if word.startswith("swap ") or (word == "died" and "simulation" in str(what)):
            self._hazards.took[word if word != "died" else "engine died"] += 1
        self._watch(word, what)

    async def rollout_workers(
        self,
        plan: Plan,
        folder: Path,
        runtime: Runtime,
        store: RunStore,
        models: Models,
        rewards: RewardPools,
        lineage: Lineage,
    ) -> RolloutHands | None:
        if not self._rollout_faults.workers:
            return None

        def took(fault: str, what: object) -> None:
            self._hazards.took[fault] += 1
            self._watch(fault, what)

        def left(refs: int) -> None:
            if self._parts is not None and not self._parts.context.table.rows:  # else what it has is somebody's still
                self.refs_left += refs

        def late(group: FinishedGroup, receipt: Receipt) -> None:
            if self._parts is not None:
                hands.refs.note(group.refs, receipt.place)
                try:
                    self._parts.flow.finish(group, receipt)
                except IllegalTransition as error:
                    self._hazards.broken.append(f"{type(error).__name__}: {error}")

        hands = await simulated_workers(
            plan, runtime, store, self.files, models.engines, rewards, self._rollout_faults, took, late, left
        )
        return hands

    async def functions(self, plan: Plan, runtime: Runtime) -> Workers[FunctionsWorker]:
        took = self._hazards.took
        return await simulated_functions(
            plan, runtime, self._functions_faults, self._runtime.charge, lambda fault: took.update([fault])
        )

    @property
    def ground(self) -> Ground | None:
        return self._ground

    def began(self, parts: Parts) -> None:
        self._parts = parts
        if self._ground is not None:
            self._ground.begin()
        self._hazards.began(parts, self._is_on)

    @asynccontextmanager
    async def rewards(self, plan: Plan, folder: Path, runtime: Runtime, ask: Ask) -> AsyncGenerator[RewardPools]:
        yield RewardPools(SimulatedRewards(runtime.clock, self._costs.rewards), {})

    def tracking(
        self,
        sections: Sequence[TrackerSection],
        folder: Path,
        clock: Clock,
        event: EventSink,
        seen: Callable[[], bool],
    ) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def watchdog(self, plan: Plan, owners: Mapping[str, str], record: Path) -> AbstractAsyncContextManager[object]:
        return nullcontext()

    def control(self, folder: Path, clock: Clock, answer: Answer) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def at_work(self) -> AbstractContextManager[None]:
        return nullcontext()


async def _group(name: str, rank: TrainerRank, runtime: Runtime) -> TrainerGroup:
    return await TrainerGroup.of(name, RankHere(rank, runtime, name))
