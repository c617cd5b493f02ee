"""The rollout workers of a run, built: their specs, and their start."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.config import ConfigError
from headrace.controller.building.processors import often_of
from headrace.controller.building.reward_pools import RewardPools
from headrace.controller.planning.judges import own_judges
from headrace.controller.planning.plan import Plan
from headrace.controller.planning.tokens import reward_tokens
from headrace.engines.embedded.cache_plan import context_limit
from headrace.engines.pool import EnginePool
from headrace.experience.records.restored_refs import RestoredRefs
from headrace.experience.text.fast_tokenizer import TokenizerSpec
from headrace.models.loading import load_tokenizer, read_generation_stops, read_model_config
from headrace.roles.reissue import Losses
from headrace.roles.rollout_seats import RolloutSeats
from headrace.roles.rollout_workers import RolloutWorkers
from headrace.roles.task_relay import TaskRelay
from headrace.roles.workers.rollout import RolloutWorker
from headrace.roles.workers.rollout_types import ModelSpec, RolloutSpec
from headrace.rollout.workflow import outside_player
from headrace.runtime.protocol import Clock, Runtime, WaitTimeout
from headrace.runtime.supervision import Often
from headrace.runtime.workers import Handle, Placement, Silence, WorkerError, WorkerLost
from headrace.store import RunStore
from headrace.store.partials import PARTIALS_NAME
from headrace.weights.version import Lineage

_THREADS = 1
_END_S = 20.0
_START_S = 600.0
"""A user's module may import much."""

logger = logging.getLogger(__name__)


class RolloutHands:
    """Rollout workers, and what others of the run know them by."""

    def __init__(
        self,
        workers: RolloutWorkers,
        seats: RolloutSeats,
        refs: RestoredRefs,
        losses: Losses,
        spec: object,
        relay: TaskRelay | None = None,
    ) -> None:
        """`spec`: of one more worker. `relay`: of what they have for agents outside."""
        self.relay = relay
        self.spec = spec
        self.workers = workers
        self.seats = seats
        self.refs = refs
        """Where the table's columns are: of samples that workers keep, too."""
        self.losses = losses


async def start_rollout_workers(
    plan: Plan,
    folder: Path,
    runtime: Runtime,
    store: RunStore,
    engines: EnginePool,
    judges: Mapping[str, EnginePool],
    rewards: RewardPools,
    lineage: Lineage,
) -> RolloutHands | None:
    """None if the run has none. `engines` have started. Raises ConfigError, WorkerError, WorkerLost."""
    count, config = plan.rollout_workers, plan.config
    if not count:
        return None
    handles = [pool.handles for pool in (engines, *judges.values())]
    template = TokenizerSpec.of(plan.tokenizer)
    policy = ModelSpec(config.model.path, template, plan.stop_token_ids, plan.max_context, handles[0])
    spec = RolloutSpec(
        config=config,
        policy=policy,
        judges={
            own.path: _judge(own.path, own.engine, of_judge)
            for own, of_judge in zip(own_judges(config.rewards), handles[1:], strict=True)
        },
        longest={"": plan.fit.longest, **{name: fit.longest for name, fit in plan.held_out_fits.items()}},
        branch=lineage.branch,
        last_kept=store.checkpoints.lineage(),
        journal=str((store.path / "journal").resolve()),
        partials=str((store.path / PARTIALS_NAME).resolve()),
        reward_log=str((folder / "logs" / "reward.log").resolve()),
        workers=count,
        min_samples=least_samples(plan),
        keeps_failed=config.record.samples_per_batch != 0,
    )
    silence = Silence(config.rollout.block_timeout_s, "rollout.block_timeout_s")
    where = Placement(process=True, threads=_THREADS, start_s=_START_S, silence=silence)
    outside = outside_player(plan.workflow)
    tokens = reward_tokens(config)
    relay = None if outside is None else TaskRelay(outside, runtime, silence.most_s)
    return await begun(RolloutWorker, [spec] * count, where, runtime, store, rewards, often_of(config), relay, tokens)


async def begun(
    kind: type[Any],
    specs: Sequence[object],
    where: Placement,
    runtime: Runtime,
    store: RunStore,
    rewards: RewardPools,
    often: Often | None = None,
    relay: TaskRelay | None = None,
    tokens: Mapping[str, str] | None = None,
) -> RolloutHands:
    """Workers of a kind as `RolloutWorker`, at work. `often`, `tokens`: see `RolloutSeats`; `relay`: see
    `RolloutHands`. Raises as `start_rollout_workers`."""
    losses, refs = Losses(), RestoredRefs(runtime.refs, store.journal.read)
    try:
        group = await runtime.start(kind, specs, where)
        seats = RolloutSeats(group, len(specs), runtime, store.writers, losses, often)
        seats.tokens = tokens or {}
        if relay is not None:
            seats.began = relay.began
        await seats.begin()
    except WorkerError as error:
        if error.type == ConfigError.__name__:
            raise ConfigError(f"{error.text}; so {error.worker or 'a rollout worker'} finds") from error
        raise
    times, blocked_s = rewards.training.times, where.silence.most_s
    workers = RolloutWorkers(seats, runtime, store, refs, losses, times=times, blocked_s=blocked_s)
    return RolloutHands(workers, seats, refs, losses, specs[0], relay)


async def end_rollout_workers(hands: RolloutHands | None, clock: Clock) -> None:
    """With a deadline; what is left then ends with the runtime."""
    if hands is None:
        return
    if hands.relay is not None:
        await hands.relay.close()
    try:
        await clock.wait_for(hands.seats.close(), _END_S, "the rollout workers to end")
    except (WaitTimeout, WorkerError, WorkerLost) as error:
        logger.warning("%s", error)


def least_samples(plan: Plan) -> int:
    """Of a group that did not fail, for it to be trained on."""
    rollout = plan.config.rollout
    return rollout.min_samples or min(2, rollout.samples_per_prompt)


def _judge(path: str, engine: Any, handles: tuple[Handle, ...]) -> ModelSpec:
    tokenizer = load_tokenizer(path)
    return ModelSpec(
        path,
        TokenizerSpec.of(tokenizer),
        read_generation_stops(path, tokenizer),
        context_limit(read_model_config(path), engine),
        handles,
    )
