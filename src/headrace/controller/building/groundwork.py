"""What every run stands on, whether it trains or only records: schedule, table, flow and record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.controller.building.device_places import devices_of
from headrace.controller.building.device_seconds import DeviceSeconds
from headrace.controller.building.episode_runners import episode_runner
from headrace.controller.building.prompt_source import make_prompt_source
from headrace.controller.building.reward_pools import RewardPools
from headrace.controller.building.rollout_workers import RolloutHands, least_samples
from headrace.controller.planning.plan import Plan
from headrace.controller.planning.table_size import column_bytes, largest_group, table_bound
from headrace.controller.recorder import Recorder
from headrace.controller.time_spent import TimeSpent
from headrace.engines.pool import EnginePool
from headrace.experience.flow import Flow
from headrace.experience.leases import Consumer
from headrace.experience.recorded_schedule import RecordedSchedule
from headrace.experience.records.group_journal import GroupJournal
from headrace.experience.records.restored_refs import RestoredRefs
from headrace.experience.records.rollouts import quoted
from headrace.experience.sample import Group
from headrace.experience.schedule import Schedule
from headrace.experience.table import ExperienceTable
from headrace.observe.listeners import NOBODY, Listeners
from headrace.observe.spent import Activity
from headrace.observe.tally import Tally
from headrace.observe.waits import WaitMeter
from headrace.roles.context import RoleContext
from headrace.roles.failing_samples import FailureWatch
from headrace.roles.filter import FilterRole
from headrace.roles.gate_forecast import GateForecast
from headrace.roles.reissue import Losses
from headrace.roles.rollout import GroupRunner, RolloutRole
from headrace.roles.rollout_record import RolloutRecord
from headrace.roles.rollout_workers import recording_failed
from headrace.rollout.filters import looks_inside
from headrace.rollout.workflow import outside_player
from headrace.runtime.protocol import Runtime
from headrace.store import RunStore
from headrace.store.partials import Partials
from headrace.store.rollouts import Rollouts
from headrace.weights.version import Lineage, Version

_LEASED_BY_NOBODY = ("rollout", "schedule")
"""Stages that write columns, but lease no rows: they act through the flow."""
_BATCHES_READ_AHEAD = 2
"""Of a record."""
_LEASE_TERMS_PER_STALL = 1.5
"""A wait of the run ends before a lease that is held through it."""


@dataclass(frozen=True, slots=True)
class Groundwork:
    ahead: int
    """Most groups that run or wait for a batch."""
    table: ExperienceTable
    flow: Flow
    context: RoleContext
    recorder: Recorder
    record: RolloutRecord
    journal: GroupJournal
    tally: Tally
    failures: FailureWatch
    partials: Partials
    hands: RolloutHands | None = None
    forecast: GateForecast | None = None
    """Of when the gate opens, where somebody asks."""

    async def answered(self, held_out: str, group: Group) -> None:
        """A prompt of a held-out set is answered: what failed is kept, and looked at as any other failure is."""
        await self.record.failed(group, held_out)
        self.failures.look_at(group)


def lay_groundwork(
    plan: Plan,
    store: RunStore,
    runtime: Runtime,
    engines: EnginePool,
    rewards: RewardPools,
    lineage: Lineage,
    committed: Version,
    *,
    kl_coefficient: Callable[[int], float | None] = lambda batch: None,
    listeners: Listeners = NOBODY,
    hands: RolloutHands | None = None,
    others: DeviceSeconds = dict,
    judges: Sequence[EnginePool] = (),
) -> Groundwork:
    """`engines` have started. `committed`: the version that the run begins from. `hands`: who plays the episodes, if
    not this process. `others`: see `TimeSpent`. `judges`: engines of models of their own."""
    config, clock = plan.config, runtime.clock
    decode = partial(plan.codec().decode, keep_special_tokens=True)
    ahead = config.ahead(engines.slots)
    if plan.replay is not None:
        ahead = _BATCHES_READ_AHEAD * max(plan.replay.rollouts.sizes)
    table = _table(plan, ahead, store, runtime, hands)
    flow = _flow(plan, ahead, table, store, decode)
    waits, tally, activity = WaitMeter(clock.now), Tally(), Activity()
    spent = TimeSpent(
        clock,
        engines,
        flow,
        activity,
        on_policy=config.async_.in_order,
        trains=not config.rollouts_only,
        others=others,
        devices=devices_of(config, runtime, engines, judges),
    )
    recorder = Recorder(
        store,
        clock,
        engines,
        flow,
        tally,
        waits,
        spent,
        rewards.training.times,
        branch=lineage.branch,
        has_sources=len(plan.prompts.parts) > 1,
        kl_coefficient=kl_coefficient,
        listeners=listeners,
    )
    outside, forecast = outside_player(plan.workflow), None
    if outside is not None:
        forecast = GateForecast(flow, engines, activity, clock)
        outside.tasks.foretell(forecast.opening)
    context = RoleContext(
        runtime,
        flow,
        table,
        waits,
        recorder.event,
        config.runtime.stall_timeout_s,
        activity=activity,
        elsewhere=str if outside is None else outside.tasks.describe,
    )
    record = RolloutRecord(
        context,
        lambda: Rollouts(store.path, first_batch=committed.number, files=store.files),
        decode,
        per_batch=config.record.samples_per_batch,
        seed=config.seed,
        listener=listeners.rollouts,
    )
    if hands is not None:
        hands.seats.tell = recorder.event
    samples = config.rollout.prompts_per_batch * config.rollout.samples_per_prompt
    failures = FailureWatch(recorder.event, worth=samples)
    journal = GroupJournal(store.writer, runtime, table.refs)
    return Groundwork(
        ahead, table, flow, context, recorder, record, journal, tally, failures, store.partials, hands, forecast
    )


def _table(plan: Plan, ahead: int, store: RunStore, runtime: Runtime, hands: RolloutHands | None) -> ExperienceTable:
    """With a consumer for each stage that leases rows."""
    config = plan.config
    consumers = [
        Consumer(
            stage.name, frozenset(stage.reads), "group" if stage.unit == "group" else "row", frozenset(stage.writes)
        )
        for stage in plan.recipe.stages
        if stage.name not in _LEASED_BY_NOBODY
    ]
    return ExperienceTable(
        consumers,
        capacity=config.table_groups(ahead),
        capacity_bytes=table_bound(plan),
        group_bytes=largest_group(plan),
        lease_s=_LEASE_TERMS_PER_STALL * config.runtime.stall_timeout_s,
        clock=runtime.clock,
        refs=RestoredRefs(runtime.refs, store.journal.read) if hands is None else hands.refs,
    )


def _flow(plan: Plan, ahead: int, table: ExperienceTable, store: RunStore, decode: Callable[..., str]) -> Flow:
    source, pass_rates = make_prompt_source(plan, store)
    return Flow(
        _schedule(plan, ahead),
        table,
        source,
        store,
        max_drops_per_batch=plan.config.rollout.most_drops,
        reward_column="reward" if plan.config.reward.model.path is None else "scored",
        column_bytes=column_bytes(plan),
        quote=lambda group: quoted(group, decode),
        pass_rates=pass_rates,
    )


def rollout_role(
    plan: Plan,
    base: Groundwork,
    engines: EnginePool,
    judges: Mapping[str, EnginePool],
    rewards: RewardPools,
) -> RolloutRole:
    rollout, hands = plan.config.rollout, base.hands
    losses = Losses() if hands is None else hands.losses
    runner: GroupRunner
    if hands is None:
        runner = episode_runner(plan, engines, base.context.runtime, rewards.training, partials=base.partials)
    else:
        runner = hands.workers
    return RolloutRole(
        base.context,
        engines,
        runner,
        base.journal if hands is None else hands.workers,
        base.tally,
        base.failures,
        judges=tuple(judges.values()),
        counted=base.recorder.progress,
        group_tokens=rollout.samples_per_prompt * rollout.sampling.max_new_tokens,
        min_samples=least_samples(plan),
        record=base.record.failed if hands is None else recording_failed(hands.workers, base.record.failed),
        losses=losses,
        pace=None if base.forecast is None else base.forecast.groups,
    )


def filter_role(plan: Plan, base: Groundwork) -> FilterRole:
    """Filters that look at more than a header are where the columns are."""
    judge = base.hands.workers.judge if base.hands is not None and any(map(looks_inside, plan.filters)) else None
    return FilterRole(base.context, plan.filters, base.record.dropped, judge)


def _schedule(plan: Plan, ahead: int) -> Schedule:
    config, rollout = plan.config, plan.config.rollout
    if plan.replay is not None:
        return RecordedSchedule(
            prompts_per_batch=max(plan.replay.rollouts.sizes),
            max_staleness=0,
            total_batches=plan.total_batches,
            on_deadline="wait",
            ahead=ahead,
            rollouts=plan.replay.rollouts,
        )
    if config.rollouts_only:
        # Version 0 stays, so that all of the run's groups may start on it.
        return Schedule(rollout.prompts_per_batch, plan.total_batches, plan.total_batches, "wait", ahead)
    return Schedule(
        prompts_per_batch=rollout.prompts_per_batch,
        max_staleness=config.async_.staleness_bound,
        total_batches=plan.total_batches,
        on_deadline=config.deadline_rule,
        ahead=ahead,
        surplus=rollout.surplus,
    )
