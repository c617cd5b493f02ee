"""A run that generates and records, and trains nothing: no trainer, no optimiser, and the engine stays at version 0.

A group leaves by being recorded: batch k is committed once its groups are journalled and its entry is written, so that
a restore goes on with the next one. What a batch is, and what is dropped, is as in a run that trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

from headrace.controller.building.device_seconds import scoring_seconds
from headrace.controller.building.engine_workers import load_engines, load_judges
from headrace.controller.building.first_version import plane_of
from headrace.controller.building.groundwork import Groundwork, filter_role, lay_groundwork, rollout_role
from headrace.controller.building.judge_engines import asker, returns_of, serving, stop_engine
from headrace.controller.building.reward_model import load_model_reward
from headrace.controller.building.rollout_workers import end_rollout_workers, start_rollout_workers
from headrace.controller.control_socket import listening
from headrace.controller.planning.plan import Plan
from headrace.controller.planning.role_devices import policy_device
from headrace.controller.role_tasks import Role
from headrace.controller.scaling import Scaling
from headrace.controller.stopping import StopRequest
from headrace.controller.supervise import end, rewards, see_through, tell_of_damage, watching
from headrace.engines.member import Member
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import SwapMode
from headrace.experience.loader import StreamingLoader
from headrace.observe.listeners import Listeners
from headrace.rewards.model_reward import ModelReward
from headrace.roles.actors.trained_step import TrainedStep
from headrace.roles.columns.filling import ColumnRole
from headrace.roles.columns.reward import RewardColumns
from headrace.roles.engine_watch import EngineWatchRole
from headrace.roles.recording import NAME, RecordingRole
from headrace.roles.rollout import RolloutRole
from headrace.roles.weight_follower import WeightFollowerRole
from headrace.roles.weight_followers import WeightFollowersRole
from headrace.rollout.workflow import outside_player
from headrace.runtime.collection import rare_collections
from headrace.runtime.protocol import Runtime
from headrace.store import Restored, RunStore
from headrace.viewer.terminal.showing import View
from headrace.weights.plane import WeightPublisher
from headrace.weights.version import INITIAL, Lineage, Version


async def record_rollouts(
    plan: Plan,
    folder: Path,
    store: RunStore,
    restored: Restored | None,
    runtime: Runtime,
    stop: StopRequest,
    view: View | None,
    listeners: Listeners,
) -> Literal["finished", "stopped"]:
    """Build the run on its record, and see it to its end."""
    begun = INITIAL if restored is None else Version(restored.branch, restored.number)
    async with AsyncExitStack() as stack:
        plane = stack.enter_context(plane_of(plan.config, folder))
        engines, judges = await load_engines(plan, runtime, folder, plane=plane), await load_judges(plan, runtime)
        scores = await load_model_reward(plan, runtime)
        lineage = Lineage(begun.branch, store.checkpoints.lineage())
        pool = await stack.enter_async_context(rewards(plan, folder, runtime, asker(plan, engines, judges, runtime)))
        await engines.start(lineage, plane.receiver())
        hands = None
        try:
            hands = await start_rollout_workers(plan, folder, runtime, store, engines, judges, pool, lineage)
            base = lay_groundwork(
                plan,
                store,
                runtime,
                engines,
                pool,
                lineage,
                begun,
                listeners=listeners,
                hands=hands,
                others=scoring_seconds(scores, [*judges.values()]),
                judges=[*judges.values()],
            )
            recording = _recording(plan, store, base, lineage)
            base.recorder.event("started", _started(plan, base, begun))
            try:
                scaling = Scaling(plan.config, engines, plane.receiver(), hands, base.recorder.event, ahead=base.ahead)
                async with (
                    serving(judges, runtime.clock),
                    watching(view, folder, base.recorder, runtime),
                    listening(folder, runtime.clock, scaling.answer),
                ):
                    if restored is not None:
                        tell_of_damage(base.recorder, store, restored)
                        base.flow.restore(restored.number, restored.ready, restored.running)
                    rollout = rollout_role(plan, base, engines, judges, pool)
                    keepers = _keepers(plan, base, engines, [*judges.values()], plane)
                    await _run_roles(plan, base, recording, rollout, scores, stop, keepers)
                    status: Literal["finished", "stopped"] = "finished" if base.flow.is_finished else "stopped"
                    reason = {} if status == "finished" else {"reason": stop.reason}
                    version = Version(begun.branch, base.flow.batch)
                    base.recorder.event(status, {"version": str(version), **reason})
                    store.set_status(status)
                    return status
            finally:
                base.recorder.progress()
                await base.record.close()
        finally:
            await end_rollout_workers(hands, runtime.clock)
            await stop_engine(engines, runtime.clock)


def _started(plan: Plan, base: Groundwork, begun: Version) -> dict[str, Any]:
    return {
        "version": str(begun),
        "batches": plan.total_batches,
        "ahead": base.ahead,
        "device": policy_device(plan.config).type,
    }


def _recording(plan: Plan, store: RunStore, base: Groundwork, lineage: Lineage) -> RecordingRole:
    outside = outside_player(plan.workflow)
    loader = StreamingLoader(
        base.table,
        base.flow,
        consumer=NAME,
        max_tokens=None,
        streaming=False,
        timeout_s=plan.config.runtime.stall_timeout_s,
        unfinished=base.context.unfinished,
        stood_still=float if outside is None else outside.tasks.busy_s,
    )

    async def after_batch(step: TrainedStep) -> None:
        await base.record.trained(step)  # before the batch's entry: who reads that finds its samples
        base.recorder.batch(step)
        store.checkpoints.commit_recorded(branch=lineage.branch, number=step.batch + 1)

    return RecordingRole(base.context, loader, lineage, after_batch)


def _keepers(
    plan: Plan, base: Groundwork, engines: EnginePool, judges: Sequence[EnginePool], plane: WeightPublisher
) -> list[Role]:
    """Who brings back engines that died."""
    context = base.context
    engines.events.tell_to(base.recorder.event)
    engines.changed.listen(base.flow.changed.notify)

    def follower(member: Member) -> WeightFollowerRole:
        return WeightFollowerRole(context, engines, member, plane.receiver(), SwapMode.RECOMPUTE)

    followers = WeightFollowersRole(engines, context.runtime, follower, plan.config.runtime.stall_timeout_s)
    watch = EngineWatchRole(context, engines, judges=judges)
    return [followers, *returns_of(judges, context, base.recorder), watch]


async def _run_roles(
    plan: Plan,
    base: Groundwork,
    recording: RecordingRole,
    rollout: RolloutRole,
    scores: ModelReward | None,
    stop: StopRequest,
    keepers: Sequence[Role],
) -> None:
    """Until all is recorded, or the run is told to stop. The first role that fails ends all: its error is raised."""
    runtime = base.context.runtime
    stopping = runtime.spawn(stop.wait(), "stop request")
    recorded = runtime.spawn(recording.run(), "recording")
    others = [
        runtime.spawn(rollout.run(), "rollout"),
        runtime.spawn(filter_role(plan, base).run(), "filter"),
    ]
    others += [runtime.spawn(keeper.run(), "engines") for keeper in keepers]
    if scores is not None:
        by_group = plan.config.async_.in_order
        others.append(
            runtime.spawn(
                ColumnRole(base.context, RewardColumns(base.context, scores, by_group=by_group)).run(), "reward model"
            )
        )
    try:
        with rare_collections():
            await see_through(recorded, others, stopping, recording.stop)
    finally:
        stopping.cancel()
        await end([*others, recorded])
