"""Builds the parts of a training run and connects them."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.algorithms.estimate import AdvantageEstimator
from headrace.config.evaluation import PLAIN
from headrace.controller.best import BestCheckpoint
from headrace.controller.building.device_seconds import device_seconds
from headrace.controller.building.episode_runners import evaluations
from headrace.controller.building.functions_worker import asked_functions
from headrace.controller.building.groundwork import Groundwork, filter_role, lay_groundwork, rollout_role
from headrace.controller.building.judge_engines import returns_of
from headrace.controller.building.models import Models
from headrace.controller.building.reward_pools import RewardPools
from headrace.controller.building.rollout_workers import RolloutHands
from headrace.controller.building.stages import advantages_role, own_stages, scorers
from headrace.controller.building.step_ends import Refreshes, recorded_step, trained_batch
from headrace.controller.building.training_roles import (
    TrainingRoles,
    fresh_rule,
    gap_sampler,
    staleness_rule,
    turns_of,
)
from headrace.controller.checkpointer import Checkpointer
from headrace.controller.divergence import Divergence
from headrace.controller.planning.plan import Plan
from headrace.controller.recorder import Recorder
from headrace.engines.member import Member
from headrace.engines.protocol import SwapMode
from headrace.experience.flow import Flow
from headrace.observe.listeners import NOBODY, Listeners
from headrace.roles.actors.actor import ActorRole
from headrace.roles.actors.critic import CriticRole
from headrace.roles.actors.gap_sample import GapSampler
from headrace.roles.columns.filling import ColumnRole
from headrace.roles.columns.functions_worker import InWorker
from headrace.roles.context import RoleContext
from headrace.roles.engine_return import EngineReturnRole
from headrace.roles.engine_watch import EngineWatchRole
from headrace.roles.evaluator import EvaluatorRole
from headrace.roles.filter import FilterRole
from headrace.roles.model_return import ModelReturn
from headrace.roles.replay import RecordedLineage, ReplayRole
from headrace.roles.rollout import RolloutRole
from headrace.roles.rollout_record import RolloutRecord
from headrace.roles.turns import Turns
from headrace.roles.weight_follower import WeightFollowerRole, taken_up
from headrace.roles.weight_followers import WeightFollowersRole
from headrace.roles.weight_relays import WeightRelaysRole
from headrace.roles.workers.functions import FunctionsWorker
from headrace.runtime.protocol import Runtime
from headrace.runtime.signal import Signal
from headrace.runtime.workers import Workers
from headrace.store import RunStore
from headrace.weights.version import Lineage, Version


@dataclass(frozen=True, slots=True)
class Parts:
    """A run, ready to start."""

    lineage: Lineage
    """Of the versions that are made: where the run goes back, it knows."""
    begun: Version
    """Where this process began."""
    ahead: int
    """Most groups that run or wait for a batch."""
    models: Models
    flow: Flow
    context: RoleContext
    estimator: AdvantageEstimator
    recorder: Recorder
    checkpointer: Checkpointer
    refreshes: Refreshes
    """Of the reference."""
    rollouts: RolloutRecord
    rollout: RolloutRole | ReplayRole
    filter: FilterRole
    scorers: tuple[ColumnRole, ...]
    stages: tuple[ColumnRole, ...]
    functions: InWorker
    """Whom to ask for what the user's functions compute."""
    advantages: ColumnRole | None
    """None where the loss reads a teacher instead."""
    critic: CriticRole | None
    actor: ActorRole
    followers: WeightFollowersRole
    relays: WeightRelaysRole | None
    """None where versions need none."""
    returns: tuple[EngineReturnRole | ModelReturn, ...]
    """Of each judge's engine one, and of the reward model."""
    scorer_returns: tuple[ModelReturn, ...]
    """Of each model that scores rows."""
    watch: EngineWatchRole | None
    """None where nothing is generated."""
    evaluator: EvaluatorRole | None
    gap: GapSampler | None
    """None on-policy, where every token shows the gap."""
    turns: Turns
    """Who has the devices, where engines and trainer share them."""
    best: BestCheckpoint | None
    """Keeps the checkpoint that is best on a held-out set; None if none is to be kept."""

    @property
    def branch(self) -> int:
        """Of the versions that are made now."""
        return self.lineage.branch

    async def taken_up(self) -> None:
        """Until an engine serves the newest version."""
        await taken_up(self.context, self.models.engines, self.models.trainer.receiver())

    def stop(self) -> None:
        """Have the actor end before the batch that it is at."""
        self.actor.stop()
        if self.best is not None:
            self.best.let_go()


def connect(
    plan: Plan,
    models: Models,
    store: RunStore,
    runtime: Runtime,
    rewards: RewardPools,
    lineage: Lineage,
    committed: Version,
    listeners: Listeners = NOBODY,
    hands: RolloutHands | None = None,
    *,
    functions: Workers[FunctionsWorker],
) -> Parts:
    """Roles, table and schedule, built around the models, whose engines have started. `committed`: the version that
    the run begins from."""
    if plan.replay is not None:
        lineage = RecordedLineage(lineage.branch, {})
    base = lay_groundwork(
        plan,
        store,
        runtime,
        models.engines,
        rewards,
        lineage,
        committed,
        kl_coefficient=lambda batch: models.kl.of(batch) if plan.config.algorithm.kl.moves else None,
        listeners=listeners,
        hands=hands,
        others=device_seconds(models),
        judges=[*models.judges.values()],
    )
    context, recorder = base.context, base.recorder
    asked, estimator = asked_functions(plan, context, functions), _estimator(plan, models)
    best = _best(plan, store, base)
    checkpointer = _checkpointer(plan, models, store, base, committed, listeners, best)
    published = _published(models, base)
    refreshes = Refreshes(plan, models, lineage)
    turns, rule, fresh = turns_of(plan, context, models), staleness_rule(plan), fresh_rule(plan, lineage)
    training = TrainingRoles(plan, models, base, lineage, turns, rule, fresh)
    critic, gap = training.critic(), gap_sampler(plan, models, context, fresh, committed)
    divergence = Divergence(masks_truncated=rule.masks_truncated)
    actor = training.actor(
        published,
        critic,
        gap,
        trained=trained_batch(plan, models, asked, refreshes, checkpointer),
        after_step=recorded_step(recorder, base.record, divergence, checkpointer, best, lineage, models.groups, turns),
        settled=checkpointer.settled,
    )
    parts = Parts(
        lineage=lineage,
        begun=committed,
        ahead=base.ahead,
        models=models,
        flow=base.flow,
        context=context,
        estimator=estimator,
        recorder=recorder,
        checkpointer=checkpointer,
        refreshes=refreshes,
        rollouts=base.record,
        rollout=_rollout(plan, models, base, rewards),
        filter=filter_role(plan, base),
        scorers=scorers(context, plan, models, published, lineage, committed, turns),
        stages=own_stages(context, plan, asked),
        functions=asked,
        advantages=advantages_role(context, plan, estimator, asked, models.kl),
        critic=critic,
        actor=actor,
        followers=_followers(plan, models, context),
        relays=None if models.relays is None else WeightRelaysRole(context, models.relays),
        returns=(*returns_of([*models.judges.values()], context, recorder), *models.reward_returns),
        scorer_returns=models.scorer_returns,
        watch=_engine_watch(models, context),
        evaluator=_evaluator(plan, models, store, base, rewards, best) if plan.held_out else None,
        gap=gap,
        turns=turns,
        best=best,
    )
    checkpointer.when_failed(parts.stop)
    return parts


def _estimator(plan: Plan, models: Models) -> AdvantageEstimator:
    longest = plan.config.rollout.sampling.max_new_tokens
    return AdvantageEstimator(plan.config.algorithm, max_length=longest, pieces=plan.pieces, coefficient=models.kl)


def _best(plan: Plan, store: RunStore, base: Groundwork) -> BestCheckpoint | None:
    by = plan.config.best_by
    return None if by is None else BestCheckpoint(store.checkpoints, by, base.context, base.recorder.event)


def _checkpointer(
    plan: Plan,
    models: Models,
    store: RunStore,
    base: Groundwork,
    committed: Version,
    listeners: Listeners,
    best: BestCheckpoint | None,
) -> Checkpointer:
    config, context = plan.config, base.context
    return Checkpointer(
        store,
        models.trainer,
        context.runtime,
        context.activity,
        others=models.parts,
        state=lambda: dict(models.kl.state),
        every=config.checkpoint.every,
        committed=committed.number,
        background=config.checkpoint.background,
        timeout_s=config.runtime.stall_timeout_s,
        listener=listeners.checkpoint,
        report=base.recorder.event,
        best=best,
    )


def _published(models: Models, base: Groundwork) -> Signal:
    """That a version can be received: engines hear of it, and of what befalls engines and relays the flow and the
    record."""
    published, pool = Signal(), models.engines
    published.listen(pool.changed.notify)
    pool.changed.listen(base.flow.changed.notify)
    pool.events.tell_to(base.recorder.event)
    if models.relays is not None:
        models.relays.events.tell_to(base.recorder.event)
        models.relays.changed.listen(published.notify)
    return published


def _rollout(plan: Plan, models: Models, base: Groundwork, rewards: RewardPools) -> RolloutRole | ReplayRole:
    if plan.replay is not None:
        return ReplayRole(base.context, plan.replay.rollouts, base.journal)
    return rollout_role(plan, base, models.engines, models.judges, rewards)


def _followers(plan: Plan, models: Models, context: RoleContext) -> WeightFollowersRole:
    """Of each engine of the policy one, which takes new versions from where the engine's worker is."""
    pool, config = models.engines, plan.config

    def follower(member: Member) -> WeightFollowerRole:
        worker = pool.handles[member.index].worker if pool.handles else ""
        receiver = models.trainer.receiver().near(worker)
        return WeightFollowerRole(context, pool, member, receiver, SwapMode(config.async_.swap))

    return WeightFollowersRole(pool, context.runtime, follower, config.runtime.stall_timeout_s)


def _engine_watch(models: Models, context: RoleContext) -> EngineWatchRole | None:
    if models.engines.is_absent:
        return None
    return EngineWatchRole(context, models.engines, models.trainer.receiver(), [*models.judges.values()])


def _evaluator(
    plan: Plan,
    models: Models,
    store: RunStore,
    base: Groundwork,
    rewards: RewardPools,
    best: BestCheckpoint | None,
) -> EvaluatorRole:
    """Held-out prompts are played where training's are."""
    engines, context = models.engines, base.context
    runner = None if base.hands is None else base.hands.workers.answers
    return EvaluatorRole(
        context,
        engines,
        evaluations(plan, engines, context.runtime, rewards, models.reward, base.answered, runner, base.partials),
        base.recorder.evaluation,
        recorded=evaluated(store),
        count=plan.config.evaluation.engines,
        begins=None if best is None else best.begins,
        ended=None if best is None else best.ended,
    )


def evaluated(store: RunStore) -> dict[str, int]:
    """Of each held-out set the newest version whose evaluation stands in the record."""
    return {str(row.record.get("set", PLAIN)): row.number for row in store.metrics.read("eval")}
