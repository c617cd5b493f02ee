"""Builds the parts of a training run and connects them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.algorithms.estimate import AdvantageEstimator
from headrace.config.evaluation import PLAIN
from headrace.controller.best import BestCheckpoint
from headrace.controller.checkpointer import Checkpointer
from headrace.controller.divergence import Divergence
from headrace.controller.episodes import episode_runner, evaluations, policy_settings
from headrace.controller.models import Models
from headrace.controller.plan import Plan
from headrace.controller.policy_objective import policy_columns, prepare_batch
from headrace.controller.prompt_source import make_prompt_source
from headrace.controller.recorder import Recorder
from headrace.controller.reward_pools import RewardPools
from headrace.controller.stages import own_stages, scorers
from headrace.controller.table_size import column_bytes, largest_group, table_bytes
from headrace.controller.time_spent import TimeSpent
from headrace.engines.protocol import SwapMode
from headrace.experience.flow import Flow
from headrace.experience.index import Consumer
from headrace.experience.loader import StreamingLoader
from headrace.experience.rollouts import quoted
from headrace.experience.schedule import Schedule
from headrace.experience.table import ExperienceTable
from headrace.observe.listeners import NOBODY, Listeners
from headrace.observe.spent import Activity
from headrace.observe.tally import Tally
from headrace.observe.waits import WaitMeter
from headrace.roles import actor
from headrace.roles.actor import TRAINER_LANE, ActorRole, TrainedStep, WholeBatches
from headrace.roles.advantages import AdvantagesRole
from headrace.roles.batch_stats import BatchStats, FreshRule, StalenessRule
from headrace.roles.context import RoleContext
from headrace.roles.critic import CriticRole
from headrace.roles.evaluator import EvaluatorRole
from headrace.roles.failures import FailureWatch
from headrace.roles.filter import FilterRole
from headrace.roles.function_stage import LANE, FunctionStageRole
from headrace.roles.gap_sample import GapSampler, due_after
from headrace.roles.reward import RewardRole
from headrace.roles.rollout import RolloutRole
from headrace.roles.rollout_record import RolloutRecord
from headrace.roles.scorer import ScorerRole
from headrace.roles.weight_follower import WeightFollowerRole
from headrace.runtime.protocol import Runtime
from headrace.runtime.signal import Signal
from headrace.store import RunStore
from headrace.store.rollouts import Rollouts
from headrace.training.epochs import Epochs
from headrace.training.protocol import StepReport
from headrace.weights.version import Lineage, Version

_LEASED_BY_NOBODY = ("rollout", "schedule")
"""Stages that write columns, but lease no rows: they act through the flow."""
_LEASE_TERMS_PER_STALL = 1.5
"""A wait of the run ends before a lease that is held through it."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A run, ready to start."""

    branch: int
    """Of the versions that this process makes."""
    begun: Version
    """Where this process began."""
    ahead: int
    """Most groups that run or wait for a batch."""
    models: Models
    flow: Flow
    estimator: AdvantageEstimator
    recorder: Recorder
    checkpointer: Checkpointer
    rollouts: RolloutRecord
    rollout: RolloutRole
    filter: FilterRole
    scorers: tuple[ScorerRole | RewardRole, ...]
    stages: tuple[FunctionStageRole, ...]
    advantages: AdvantagesRole | None
    """None where the loss reads a teacher instead."""
    critic: CriticRole | None
    actor: ActorRole
    follower: WeightFollowerRole
    evaluator: EvaluatorRole | None
    gap: GapSampler | None
    """None on-policy, where every token shows the gap."""
    best: BestCheckpoint | None
    """Keeps the checkpoint that is best on a held-out set; None if none is to be kept."""

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
) -> Parts:
    """Build roles, table and schedule around the models, whose engine has started. `committed`: the version that the
    run begins from."""
    config = plan.config
    rollout = config.rollout
    clock = runtime.clock
    decode = partial(plan.codec().decode, keep_special_tokens=True)
    eta, ahead = config.async_.staleness_bound, config.ahead(models.engine.slots)
    table = ExperienceTable(
        [
            Consumer(stage.name, frozenset(stage.reads), "group" if stage.unit == "group" else "row")
            for stage in plan.recipe.stages
            if stage.name not in _LEASED_BY_NOBODY
        ],
        capacity=config.table_groups(models.engine.slots),
        capacity_bytes=table_bytes(config),
        group_bytes=largest_group(plan),
        lease_s=_LEASE_TERMS_PER_STALL * config.runtime.stall_timeout_s,
        clock=clock,
    )
    schedule = Schedule(
        prompts_per_batch=rollout.prompts_per_batch,
        max_staleness=eta,
        total_batches=plan.total_batches,
        on_deadline=config.deadline_rule,
        ahead=ahead,
        surplus=rollout.surplus,
    )
    source, pass_rates = make_prompt_source(plan, store)
    flow = Flow(
        schedule,
        table,
        source,
        store,
        runtime,
        max_drops_per_batch=rollout.most_drops,
        reward_column="reward" if models.reward is None else "scored",
        column_bytes=column_bytes(plan),
        quote=lambda group: quoted(group, decode),
        pass_rates=pass_rates,
    )
    waits, tally, activity = WaitMeter(clock.now), Tally(), Activity()
    algorithm, kl = config.algorithm, models.kl
    estimator = AdvantageEstimator(
        algorithm, max_length=rollout.sampling.max_new_tokens, pieces=plan.pieces, coefficient=kl
    )
    recorder = Recorder(
        store,
        clock,
        models.engine,
        flow,
        tally,
        waits,
        TimeSpent(clock, models.engine, flow, activity, on_policy=config.async_.in_order),
        rewards.training.times,
        branch=lineage.branch,
        has_sources=len(plan.prompts.parts) > 1,
        kl_coefficient=lambda batch: kl.of(batch) if algorithm.kl.moves else None,
        listeners=listeners,
    )
    failures = FailureWatch(recorder.event, worth=rollout.prompts_per_batch * rollout.samples_per_prompt)
    context = RoleContext(
        runtime, flow, table, waits, recorder.event, config.runtime.stall_timeout_s, activity=activity
    )
    record = RolloutRecord(
        context,
        lambda: Rollouts(store.path, first_batch=committed.number),
        decode,
        per_batch=config.record.samples_per_batch,
        seed=config.seed,
        listener=listeners.rollouts,
    )
    best = None
    if (by := config.best_by) is not None:
        best = BestCheckpoint(store.checkpoints, by, context, recorder.event)
    checkpointer = Checkpointer(
        store,
        models.trainer,
        runtime,
        activity,
        others=models.saved,
        state=lambda: dict(kl.state),
        every=config.checkpoint.every,
        committed=committed.number,
        listener=listeners.checkpoint,
        best=best,
    )
    published = Signal()
    rule = StalenessRule(
        eta,
        masks=config.deadline_rule == "mask",
        allows_late=config.deadline_rule == "late",
        masks_truncated=algorithm.truncated == "mask",
    )

    def loader(consumer: str, max_tokens: int, epochs: Epochs | None) -> StreamingLoader:
        return StreamingLoader(
            table,
            flow,
            consumer=consumer,
            max_tokens=max_tokens if epochs is None else None,
            streaming=config.async_.streaming and epochs is None,
            timeout_s=config.runtime.stall_timeout_s,
            unfinished=context.unfinished,
        )

    refresh = _refresh(plan, models, runtime)

    async def trained(batch: int, reports: Sequence[StepReport], stats: BatchStats) -> None:
        measured = [report.stats["reference_kl"] for report in reports if "reference_kl" in report.stats]
        if algorithm.kl.place == "loss" and algorithm.kl.moves and measured and stats.trained_samples:
            samples = stats.trained_samples
            await context.compute(LANE, "the KL's controller", kl.follow, batch, sum(measured), samples)
        await refresh(batch + 1)
        checkpointer.trained()

    def epochs(updates: int, whole: bool) -> Epochs | None:
        """Over batches that are all there before they are trained on, if they are."""
        return Epochs(algorithm.epochs_per_batch, updates, config.seed) if whole or config.async_.in_order else None

    critic = None
    if models.critic is not None:
        of_critic, budget = config.critic, config.critic.max_tokens_per_microbatch
        over = epochs(of_critic.updates_per_batch, config.seals_critic)
        rows = loader("critic.update", budget, over)
        critic = CriticRole(context, rows, models.critic, rule, max_tokens=budget, epochs=over)
    over = epochs(algorithm.updates_per_batch, algorithm.seals_batch)
    gap, fresh = None, FreshRule(lineage, keeps_keys=config.async_.swap == "keep")
    if eta:
        policy = policy_settings(plan, models.engine, clock)
        # The first batch that the actor looks at shows the gap, unless it comes after others, when it may be stale.
        warms_up = plan.warm_up_batches > committed.number
        first = plan.warm_up_batches if warms_up else due_after(committed.number)
        gap = GapSampler(context, models.engine, policy, plan.prompts, fresh, first=first)
    return Parts(
        branch=lineage.branch,
        begun=committed,
        ahead=ahead,
        models=models,
        flow=flow,
        estimator=estimator,
        recorder=recorder,
        checkpointer=checkpointer,
        rollouts=record,
        rollout=RolloutRole(
            context,
            models.engine,
            episode_runner(plan, models.engine, clock, rewards.training),
            tally,
            failures,
            judges=tuple(models.judges.values()),
            counted=recorder.progress,
            min_samples=rollout.min_samples or min(2, rollout.samples_per_prompt),
            record=record.failed,
        ),
        filter=FilterRole(context, plan.filters, record.dropped),
        scorers=scorers(context, plan, models, published, committed),
        stages=own_stages(context, plan),
        advantages=AdvantagesRole(
            context,
            estimator,
            reads=plan.recipe.stage("advantages").reads,
            whole_batch=algorithm.needs_whole_batch,
            extra=algorithm.advantage_reads,
            lane=LANE if plan.pieces.has_part_in_advantages else None,
        )
        if plan.recipe.has("advantages")
        else None,
        critic=critic,
        actor=ActorRole(
            context,
            loader(actor.NAME, config.trainer.max_tokens_per_microbatch, over),
            models.trainer,
            models.publisher,
            published,
            lineage,
            rule,
            fresh,
            columns=policy_columns(algorithm, own_proximal=config.own_proximal),
            max_tokens_per_microbatch=config.trainer.max_tokens_per_microbatch,
            whole=WholeBatches(
                over,
                recompute=algorithm.needs_proximal and not config.own_proximal,
                prepare=prepare_batch(algorithm),
                stop_kl=algorithm.stop_kl,
            )
            if over is not None
            else None,
            critic=critic,
            warm_up_batches=plan.warm_up_batches,
            gap_rows=gap.rows if gap is not None else lambda batch: (),
            trained=trained,
            after_step=_after_step(
                recorder, record, Divergence(masks_truncated=rule.masks_truncated), checkpointer, best, lineage
            ),
        ),
        follower=WeightFollowerRole(
            context, models.engine, models.publisher.receiver(), published, SwapMode(config.async_.swap)
        ),
        evaluator=EvaluatorRole(
            context,
            models.engine,
            evaluations(plan, models.engine, clock, rewards, models.reward, failures.look_at),
            recorder.evaluation,
            recorded=_evaluated(store),
            begins=None if best is None else best.begins,
            ended=None if best is None else best.ended,
        )
        if plan.held_out
        else None,
        gap=gap,
        best=best,
    )


def _after_step(
    recorder: Recorder,
    rollouts: RolloutRecord,
    divergence: Divergence,
    checkpointer: Checkpointer,
    best: BestCheckpoint | None,
    lineage: Lineage,
) -> Callable[[TrainedStep], Awaitable[None]]:
    async def after_step(step: TrainedStep) -> None:
        await rollouts.trained(step)  # before the batch's entry: who reads that finds its samples
        recorder.batch(step)
        divergence.look_at(step)
        await checkpointer.after(Version(lineage.branch, step.batch + 1))
        if best is not None:
            await best.begun(step.batch + 1)

    return after_step


def _refresh(plan: Plan, models: Models, runtime: Runtime) -> Callable[[int], Awaitable[None]]:
    """Called with the number of each version before a row of its batch can be scored: makes every n-th the
    reference."""
    every = plan.config.reference.refresh_every
    own = models.reference

    async def refresh(number: int) -> None:
        if models.refreshed is None or every is None or number % every:
            return
        if own is None:
            await runtime.compute(TRAINER_LANE, models.trainer.keep_reference)
        else:
            # The trainer rests meanwhile: the actor waits for this.
            await runtime.compute("reference", lambda: own.take(dict(models.trainer.tensors())))

    return refresh


def _evaluated(store: RunStore) -> dict[str, int]:
    """Of each held-out set the newest version whose evaluation stands in the record."""
    return {str(row.record.get("set", PLAIN)): row.number for row in store.metrics.read("eval")}
