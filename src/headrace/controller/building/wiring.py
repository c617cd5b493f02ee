"""Builds the parts of a training run and connects them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.algorithms.estimate import AdvantageEstimator
from headrace.config.evaluation import PLAIN
from headrace.controller.best import BestCheckpoint
from headrace.controller.building.device_seconds import device_seconds
from headrace.controller.building.episode_runners import evaluations, policy_settings
from headrace.controller.building.functions_worker import asked_functions
from headrace.controller.building.groundwork import filter_role, lay_groundwork, rollout_role
from headrace.controller.building.judge_engines import returns_of
from headrace.controller.building.models import Models
from headrace.controller.building.reward_pools import RewardPools
from headrace.controller.building.rollout_workers import RolloutHands
from headrace.controller.building.stages import own_stages, scorers
from headrace.controller.building.step_ends import Refreshes, recorded_step
from headrace.controller.checkpointer import Checkpointer
from headrace.controller.divergence import Divergence
from headrace.controller.planning.plan import Plan
from headrace.controller.recorder import Recorder
from headrace.engines.protocol import SwapMode
from headrace.experience.columns import EXPERTS
from headrace.experience.flow import Flow
from headrace.experience.loader import StreamingLoader
from headrace.observe.listeners import NOBODY, Listeners
from headrace.roles.actors import actor
from headrace.roles.actors.actor import ActorRole
from headrace.roles.actors.batch_stats import BatchStats, FreshRule, StalenessRule
from headrace.roles.actors.critic import CriticRole
from headrace.roles.actors.gap_sample import GapSampler, due_after
from headrace.roles.actors.whole_batch import WholeBatches
from headrace.roles.columns.advantages import AdvantageColumns
from headrace.roles.columns.filling import ColumnRole
from headrace.roles.columns.functions_worker import InWorker
from headrace.roles.context import RoleContext
from headrace.roles.engine_return import EngineReturnRole
from headrace.roles.engine_watch import EngineWatchRole
from headrace.roles.evaluator import EvaluatorRole
from headrace.roles.filter import FilterRole
from headrace.roles.lending import Lending
from headrace.roles.lending_rule import LendingRule
from headrace.roles.replay import NeverFresh, RecordedLineage, ReplayRole
from headrace.roles.rollout import RolloutRole
from headrace.roles.rollout_record import RolloutRecord
from headrace.roles.turns import NoTurns, SharedDevices, Turns
from headrace.roles.weight_follower import WeightFollowerRole, taken_up
from headrace.roles.weight_followers import WeightFollowersRole
from headrace.roles.weight_relays import WeightRelaysRole
from headrace.roles.workers.functions import FunctionsWorker
from headrace.rollout.workflow import outside_player
from headrace.runtime.protocol import Runtime
from headrace.runtime.signal import Signal
from headrace.runtime.workers import Workers
from headrace.store import RunStore
from headrace.training.epochs import Epochs
from headrace.training.objective import policy_columns, prepare_batch
from headrace.training.protocol import StepReport
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
    returns: tuple[EngineReturnRole, ...]
    """Of each judge's engine one."""
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
    """Build roles, table and schedule around the models, whose engines have started. `committed`: the version that the
    run begins from."""
    config, replay = plan.config, plan.replay
    rollout = config.rollout
    if replay is not None:
        lineage = RecordedLineage(lineage.branch, {})
    algorithm, kl = config.algorithm, models.kl
    base = lay_groundwork(
        plan,
        store,
        runtime,
        models.engines,
        rewards,
        lineage,
        committed,
        kl_coefficient=lambda batch: kl.of(batch) if algorithm.kl.moves else None,
        listeners=listeners,
        hands=hands,
        others=device_seconds(models),
        judges=[*models.judges.values()],
    )
    flow, table, context, recorder, record = base.flow, base.table, base.context, base.recorder, base.record
    eta = config.async_.staleness_bound
    estimator = AdvantageEstimator(
        algorithm, max_length=rollout.sampling.max_new_tokens, pieces=plan.pieces, coefficient=kl
    )
    asked = asked_functions(plan, context, functions)
    best = None
    if (by := config.best_by) is not None:
        best = BestCheckpoint(store.checkpoints, by, context, recorder.event)
    checkpointer = Checkpointer(
        store,
        models.trainer,
        runtime,
        context.activity,
        others=models.parts,
        state=lambda: dict(kl.state),
        every=config.checkpoint.every,
        committed=committed.number,
        background=config.checkpoint.background,
        timeout_s=config.runtime.stall_timeout_s,
        listener=listeners.checkpoint,
        report=recorder.event,
        best=best,
    )
    published, pool = Signal(), models.engines
    published.listen(pool.changed.notify)
    pool.changed.listen(flow.changed.notify)
    pool.events.tell_to(recorder.event)
    if models.relays is not None:
        models.relays.events.tell_to(recorder.event)
        models.relays.changed.listen(published.notify)
    judges = [*models.judges.values()]
    turns = _turns(plan, context, models)
    truncated = algorithm.truncated == "mask"
    rule = StalenessRule(eta, config.deadline_rule == "mask", config.deadline_rule == "late", truncated)
    if replay is not None:
        rule = replay.rule(masks_truncated=truncated)

    outside = outside_player(plan.workflow)

    def stood_still() -> float:
        """No row could come while no engine served, or of what a rollout worker was lost with, or while all agents
        outside were at work and tasks waited for them."""
        away = sum(each.outage.seconds() for each in (pool, *judges))
        busy = 0.0 if outside is None else outside.tasks.busy_s()
        return away + busy + (0.0 if hands is None else hands.seats.lost_time.seconds())

    def loader(consumer: str, max_tokens: int, epochs: Epochs | None) -> StreamingLoader:
        return StreamingLoader(
            table,
            flow,
            consumer=consumer,
            max_tokens=max_tokens if epochs is None else None,
            streaming=config.async_.streaming and epochs is None,
            timeout_s=config.runtime.stall_timeout_s,
            unfinished=context.unfinished,
            stood_still=stood_still,
            holds=lambda: turns is not None and turns.holds_rows,
        )

    refreshes = Refreshes(plan, models, lineage)

    async def trained(batch: int, reports: Sequence[StepReport], stats: BatchStats) -> None:
        measured = [report.stats["reference_kl"] for report in reports if "reference_kl" in report.stats]
        if algorithm.kl.place == "loss" and algorithm.kl.moves and measured and stats.trained_samples:
            samples = stats.trained_samples
            kl.take(batch, await asked.coefficient(kl.value, sum(measured), samples))
        await refreshes.at(batch + 1)
        checkpointer.trained()

    def epochs(updates: int, whole: bool) -> Epochs | None:
        """Over batches that are all there before they are trained on, if they are."""
        return Epochs(algorithm.epochs_per_batch, updates, config.seed) if whole or config.async_.in_order else None

    critic = None
    if models.critic is not None:
        of_critic, budget = config.critic, config.critic.tokens_at_once
        over = epochs(of_critic.updates_per_batch, config.seals_critic)
        rows = loader("critic.update", budget, over)
        critic = CriticRole(
            context, rows, models.critic, rule, max_tokens=budget, epochs=over, turns=turns or NoTurns()
        )
    over = epochs(algorithm.updates_per_batch, algorithm.seals_batch)
    gap, fresh = None, FreshRule(lineage, keeps_keys=config.async_.swap == "keep")
    if replay is not None:
        fresh = NeverFresh(lineage)
    elif eta:
        policy = policy_settings(plan, models.engines, runtime)
        # The first batch that the actor looks at shows the gap, unless it comes after others, when it may be stale.
        warms_up = plan.warm_up_batches > committed.number
        first = plan.warm_up_batches if warms_up else due_after(committed.number)
        gap = GapSampler(context, pool, policy, plan.prompts, fresh, first=first)
    answers = None if hands is None else hands.workers.answers
    parts = Parts(
        lineage=lineage,
        begun=committed,
        ahead=base.ahead,
        models=models,
        flow=flow,
        context=context,
        estimator=estimator,
        recorder=recorder,
        checkpointer=checkpointer,
        refreshes=refreshes,
        rollouts=record,
        rollout=rollout_role(plan, base, models.engines, models.judges, rewards)
        if replay is None
        else ReplayRole(context, replay.rollouts, base.journal),
        filter=filter_role(plan, base),
        scorers=scorers(context, plan, models, published, lineage, committed, turns or NoTurns()),
        stages=own_stages(context, plan, asked),
        functions=asked,
        advantages=ColumnRole(
            context,
            AdvantageColumns(
                context,
                estimator,
                asked,
                kl,
                moves=algorithm.kl.moves,
                whole_batch=algorithm.needs_whole_batch,
            ),
        )
        if plan.recipe.has("advantages")
        else None,
        critic=critic,
        actor=ActorRole(
            context,
            loader(actor.NAME, config.trainer.tokens_at_once, over),
            models.trainer,
            published,
            lineage,
            rule,
            fresh,
            columns=(
                *policy_columns(algorithm, own_proximal=config.own_proximal),
                *((EXPERTS,) if algorithm.router_replay else ()),
            ),
            max_tokens_per_microbatch=config.trainer.tokens_at_once,
            whole=WholeBatches(
                over,
                recompute=algorithm.needs_proximal and not config.own_proximal,
                prepares=prepare_batch(algorithm) is not None,
                stop_kl=algorithm.stop_kl,
            )
            if over is not None
            else None,
            critic=critic,
            warm_up_batches=plan.warm_up_batches,
            gap_rows=gap.rows if gap is not None else lambda batch: (),
            coefficient=lambda: kl.value if algorithm.kl.place == "loss" and algorithm.kl.moves else None,
            trained=trained,
            after_step=recorded_step(
                recorder,
                record,
                Divergence(masks_truncated=rule.masks_truncated),
                checkpointer,
                best,
                lineage,
                models.groups,
                turns or NoTurns(),
            ),
            settled=checkpointer.settled,
            turns=turns,
        ),
        followers=WeightFollowersRole(
            pool,
            runtime,
            lambda member: WeightFollowerRole(
                context,
                pool,
                member,
                models.trainer.receiver().near(pool.handles[member.index].worker if pool.handles else ""),
                SwapMode(config.async_.swap),
            ),
            config.runtime.stall_timeout_s,
        ),
        relays=None if models.relays is None else WeightRelaysRole(context, models.relays),
        returns=tuple(returns_of(judges, context, recorder)),
        watch=None if pool.is_absent else EngineWatchRole(context, pool, models.trainer.receiver(), judges),
        evaluator=EvaluatorRole(
            context,
            models.engines,
            evaluations(plan, models.engines, runtime, rewards, models.reward, base.answered, answers),
            recorder.evaluation,
            recorded=evaluated(store),
            count=config.evaluation.engines,
            begins=None if best is None else best.begins,
            ended=None if best is None else best.ended,
        )
        if plan.held_out
        else None,
        gap=gap,
        turns=turns or NoTurns(),
        best=best,
    )
    checkpointer.when_failed(parts.stop)
    return parts


def _turns(plan: Plan, context: RoleContext, models: Models) -> Turns | None:
    """None where engines and those that train have memory of their own at all times."""
    pool, rollout = models.engines, plan.config.rollout
    if plan.config.engine.colocated:
        return SharedDevices(context, pool, models.groups)
    if not pool.lent:
        return None
    rule = LendingRule(len(pool.own), len(pool.lent))
    return Lending(context, pool, models.groups, rule, groups=rollout.prompts_per_batch + rollout.surplus)


def evaluated(store: RunStore) -> dict[str, int]:
    """Of each held-out set the newest version whose evaluation stands in the record."""
    return {str(row.record.get("set", PLAIN)): row.number for row in store.metrics.read("eval")}
