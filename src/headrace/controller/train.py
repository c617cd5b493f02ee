"""A training run: its loop, and all around it from the folder to the summary."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, closing, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headrace.controller.begin import Begin
from headrace.controller.building.judge_engines import LateAsk, asker, serving, stop_engine
from headrace.controller.building.models import Models
from headrace.controller.building.outside_agents import tasks_told
from headrace.controller.building.own_gateway import playing
from headrace.controller.building.reward_pools import RewardPools
from headrace.controller.building.rollout_workers import RolloutHands, end_rollout_workers
from headrace.controller.building.wiring import Parts, connect
from headrace.controller.going_back import GoingBack, StoppedGoingBack
from headrace.controller.models_at_start import ModelsAtStart, load
from headrace.controller.outside import Outside, ThisMachine
from headrace.controller.planning.out_of_memory import told
from headrace.controller.planning.plan import Plan
from headrace.controller.planning.replay import note_replay
from headrace.controller.planning.resumed import resumed_plan
from headrace.controller.planning.role_devices import policy_device
from headrace.controller.role_tasks import Loop, RoleTasks
from headrace.controller.rollouts_only import record_rollouts
from headrace.controller.run_folder import (
    Ended,
    Status,
    ended_before,
    note_failure,
    note_once,
    open_store,
    refuse_to_erase,
    summarise,
    with_own_origin,
)
from headrace.controller.scaling import Scaling
from headrace.controller.stopping import StopRequest
from headrace.controller.supervise import end, tell_of_damage, unless, watching
from headrace.observe.last_steps import LastSteps
from headrace.observe.listeners import NOBODY, Listeners
from headrace.observe.trace import write_trace
from headrace.roles.workers.functions import FunctionsWorker
from headrace.runtime.ground import on_ground
from headrace.runtime.inline import Span
from headrace.runtime.protocol import Runtime
from headrace.runtime.together import together
from headrace.runtime.workers import Workers
from headrace.store import Restored, RunStore, StoreError
from headrace.store.run_store import DATABASE_NAME
from headrace.viewer.terminal.showing import Noticed, View
from headrace.weights.version import Lineage, Version

_MOST_SPANS = 200_000
"""Of a trace: the last ones are kept."""

STOPPING = "the batch at hand is given up; a second signal ends all at once"
"""What is said of a signal to stop."""


def loop_of(parts: Parts) -> Loop:
    """The way of a group. Each role runs by itself, as fast as it can: they meet in the experience table, which has a
    row when its columns are there, and in the weight plane, which has a version when it is whole."""
    return Loop(
        # Admit, generate, score: a group goes through the gate onto an engine; it is played, scored and journaled.
        rollout=parts.rollout,
        # Fill: it is kept or dropped; then each column is computed as soon as what it is computed from is there.
        columns=[
            ("filter", parts.filter),
            *(("stage", stage) for stage in parts.stages),
            *(("scorer", scorer) for scorer in parts.scorers),
            *([("advantages", parts.advantages)] if parts.advantages else []),
        ],
        # Train, publish: micro-batches as their rows come, a step of both, and the version that follows is offered.
        critic=parts.critic,
        actor=parts.actor,
        # Swap: each engine takes it by itself, where the trainer's memory is not seen from a relay.
        relays=parts.relays,
        followers=parts.followers,
        returns=parts.returns,
        scorer_returns=parts.scorer_returns,
        # Beside it.
        evaluator=parts.evaluator,
        gap=parts.gap,
        watch=parts.watch,
        functions=parts.functions,
    )


async def train(
    plan: Plan,
    folder: Path,
    begin: Begin,
    view: View | None = None,
    tell: Callable[[str], None] = lambda line: None,
    *,
    stop: StopRequest | None = None,
    listeners: Listeners = NOBODY,
    owners: Mapping[str, str] = MappingProxyType({}),
    outside: Outside | None = None,
) -> Ended:
    """Run to the end, or until SIGINT or SIGTERM, or `stop`. Whatever is raised leaves the run ready to be resumed.

    A run that is finished stays as it is when it is resumed with its own config; with a longer one it goes on. `view`
    shows the run while it goes; `tell` is given notes on how it begins, each a line. `owners`: what each file of the
    caller's that listeners are in is, for the watchdog. Raises ConfigError, StoreError, WaitTimeout, WeightError,
    EngineError, NothingToTrain, OutOfMemory. `outside`: this machine, unless it is given.
    """
    outside = outside or ThisMachine()
    files = outside.files
    if begin == "fresh":
        refuse_to_erase(plan, folder)
    if begin == "resume" and (ended := ended_before(plan, folder, files)) is not None:
        return ended
    if begin == "resume" and RunStore.exists(folder, files):
        plan = resumed_plan(plan, folder, files)
    settings = plan.config.runtime
    spans: deque[Span] = deque(maxlen=_MOST_SPANS)
    runtime = outside.runtime(plan, folder, spans.append if settings.trace else None)
    store, restored = open_store(
        plan, folder, begin, runtime.clock.wall(), lambda line: tell(f"--resume: {line}"), files
    )
    try:
        plan = with_own_origin(plan, store, runtime.clock.wall())
        if plan.replay is not None:
            tell(f"data.rollouts: {plan.config.data.rollouts} holds {plan.replay.describe()}")
            note_once(store, runtime.clock.wall(), "replays", note_replay(plan.replay, plan.config.data.rollouts or ""))
    except BaseException as error:
        note_failure(store, runtime.clock.wall(), error)
        last = LastSteps(error)
        with last.step("its status"):
            store.set_status("failed")
        with last.step("the end of its record"):
            store.close()
        raise
    status: Status = "failed"
    ended_by: BaseException | None = None
    noticed = None if view is None else Noticed(view)

    def seen() -> bool:
        return noticed is not None and noticed.is_open

    def event(kind: str, data: dict[str, Any]) -> None:
        store.events.write(runtime.clock.wall(), kind, data)

    try:
        with closing(store):
            async with outside.tracking(plan.config.trackers, folder, runtime.clock, event, seen):
                try:
                    async with outside.watchdog(plan, owners, store.path / DATABASE_NAME):
                        with told(plan.config), stop or StopRequest(STOPPING) as told_to_stop:
                            go = record_rollouts if plan.config.rollouts_only else partial(_train, outside)
                            async with (
                                playing(plan, runtime, here=not plan.rollout_workers) as plan,
                                tasks_told(plan, folder, runtime, files, event, tell),
                            ):
                                work = go(plan, folder, store, restored, runtime, told_to_stop, noticed, listeners)
                                ground = outside.ground
                                status = await (work if ground is None else on_ground(ground, work, runtime))
                except BaseException as error:
                    note_failure(store, runtime.clock.wall(), error)
                    ended_by = error
                    raise
                finally:
                    last = LastSteps(ended_by)
                    with last.step("its status"):
                        store.set_status(status)
                    with last.step("the end of its workers"):
                        await runtime.close()
                    if settings.trace:
                        with last.step("trace.json"):
                            write_trace(folder / "trace.json", spans, files)
                    last.done()
    except BaseException:
        with suppress(StoreError, OSError):  # what went wrong first is what the user must hear of
            summarise(folder, files)
        raise
    return Ended(status, summarise(folder, files))


async def _train(
    outside: Outside,
    plan: Plan,
    folder: Path,
    store: RunStore,
    restored: Restored | None,
    runtime: Runtime,
    stop: StopRequest,
    view: View | None,
    listeners: Listeners,
) -> Status:
    """Build the run on its record, and see it to its end."""
    async with AsyncExitStack() as stack:
        models, at_start, pool, functions = await _loaded(outside, plan, folder, restored, runtime, stack)
        begun, rate = at_start.version, await at_start.rest()
        # First, since only now it is known how many sequences it decodes together.
        lineage = Lineage(begun.branch, store.checkpoints.lineage())
        await models.engines.start(lineage, models.trainer.receiver())
        hands = None
        try:
            hands = await outside.rollout_workers(plan, folder, runtime, store, models, pool, lineage)
            parts = connect(
                plan,
                models,
                store,
                runtime,
                pool,
                lineage,
                begun,
                listeners,
                hands,
                functions=functions,
            )
            started = {
                "version": str(begun),
                "batches": plan.total_batches,
                "ahead": parts.ahead,
                "device": policy_device(plan.config).type,
            }
            parts.recorder.rate = rate
            parts.recorder.event("started", started)
            try:
                async with (
                    serving(models.judges, runtime.clock),
                    watching(view, folder, parts.recorder, runtime),
                    outside.control(folder, runtime.clock, _scaling(plan, models, parts, hands).answer),
                ):
                    if restored is not None:
                        tell_of_damage(parts.recorder, store, restored)
                        models.kl.restore(restored.state)
                        parts.flow.restore(restored.number, restored.ready, restored.running)
                    outside.began(parts)
                    back = GoingBack(plan, parts, store, runtime, partial(load, plan, models), hands)
                    with outside.at_work():
                        status = await _supervise(
                            parts, RoleTasks(loop_of(parts), parts, runtime, back, outside.ground), runtime, stop
                        )
                    store.set_status(status)
                    return status
            finally:
                parts.recorder.progress()
                await parts.rollouts.close()
        finally:
            await end_rollout_workers(hands, runtime.clock)
            await stop_engine(models.engines, runtime.clock)


def _scaling(plan: Plan, models: Models, parts: Parts, hands: RolloutHands | None) -> Scaling:
    receiver, event = models.trainer.receiver(), parts.recorder.event
    return Scaling(plan.config, models.engines, receiver, hands, event, ahead=parts.ahead)


async def _loaded(
    outside: Outside, plan: Plan, folder: Path, restored: Restored | None, runtime: Runtime, stack: AsyncExitStack
) -> tuple[Models, ModelsAtStart, RewardPools, Workers[FunctionsWorker]]:
    """Models with what the run begins from, and what that is; what scores, until `stack` is closed; and who computes
    the user's functions. Those that have processes of their own load beside the models."""
    models: list[tuple[Models, ModelsAtStart]] = []
    pools: list[RewardPools] = []
    functions: list[Workers[FunctionsWorker]] = []
    ask = LateAsk()

    async def build() -> None:
        made = await outside.models(plan, runtime, folder)
        at_start = ModelsAtStart(plan, made, restored, runtime.clock)
        await at_start.bring()
        models.append((made, at_start))
        if not plan.config.functions_process:
            await compute()  # nothing of the user's is imported in this process while a model is built

    async def score() -> None:
        pools.append(await stack.enter_async_context(outside.rewards(plan, folder, runtime, ask)))

    async def compute() -> None:
        functions.append(await outside.functions(plan, runtime))

    await together(
        [build(), score(), *([compute()] if plan.config.functions_process else [])], ["models", "rewards", "functions"]
    )
    ((made, at_start),) = models
    if plan.needs_engine and any(reward.judges for reward in plan.config.rewards):
        ask.answers = asker(plan, made.engines, made.judges, runtime)
    return made, at_start, pools[0], functions[0]


async def _supervise(parts: Parts, roles: RoleTasks, runtime: Runtime, stop: StopRequest) -> Status:
    """Evaluate, run the roles until the actor is done, evaluate again, checkpoint."""
    stopping = runtime.spawn(stop.wait(), "stop request")
    keepers = roles.keepers()
    watch = [task for name, task in keepers.items() if name == "engine watch"]
    try:
        if parts.evaluator is not None:
            await unless(stopping, runtime.spawn(parts.evaluator.before(), "evaluation before"), watch)
        lost = None
        if not stopping.done():
            lost = await roles.run(stopping, [*keepers.values()])
        version = Version(parts.branch, parts.flow.batch)
        if parts.checkpointer.committed != version.number:
            await parts.turns.train()
            await parts.checkpointer.commit(version)
        if lost is not None:
            raise lost
        if not parts.flow.is_finished:
            parts.recorder.event("stopped", {"version": str(version), "reason": stop.reason})
            return "stopped"
        if parts.evaluator is not None and version.number > 0:
            await parts.turns.generate()
            await unless(stopping, runtime.spawn(_evaluate_last(parts), "evaluation after"), watch)
        parts.recorder.event("finished", {"version": str(version)})
        return "finished"
    except StoppedGoingBack:
        await parts.checkpointer.close()  # one may be written still
        committed = Version(parts.branch, parts.checkpointer.committed)
        parts.recorder.event("stopped", {"version": str(committed), "reason": stop.reason})
        return "stopped"
    finally:
        await parts.checkpointer.close()
        await end([stopping, *keepers.values()])


async def _evaluate_last(parts: Parts) -> None:
    assert parts.evaluator is not None
    await parts.taken_up()
    await parts.evaluator.after()
