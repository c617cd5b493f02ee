"""Scores a model on held-out prompts, apart from any run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from headrace.config import ConfigError
from headrace.controller.building.engine_workers import load_engines, load_judges
from headrace.controller.building.episode_runners import evaluations
from headrace.controller.building.first_version import plane_of
from headrace.controller.building.judge_engines import asker, serving
from headrace.controller.building.own_gateway import playing
from headrace.controller.building.processors import own_threads
from headrace.controller.building.reward_model import load_model_reward
from headrace.controller.building.reward_pools import reward_pools
from headrace.controller.building.threads import inline_runtime
from headrace.controller.building.workers_apart import workers_apart
from headrace.controller.planning.out_of_memory import keys_of_engines, told_of
from headrace.controller.planning.plan import Plan
from headrace.controller.planning.role_devices import lanes_device
from headrace.controller.watching import watchdog
from headrace.rollout.workflow import outside_player
from headrace.runtime.protocol import Runtime
from headrace.weights.plane import WeightPublisher

logger = logging.getLogger(__name__)


async def evaluate(plan: Plan, only: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """By the name of each held-out set its result (see `Evaluation.run`); of those named in `only`, if any are.

    Raises ConfigError if there is none, OutOfMemory, and as `load_engines`.
    """
    names = [each.name for each in plan.config.held_out]
    if not names:
        raise ConfigError(
            "the config names no held-out prompts; set data.eval to a file with prompts, or evaluation.sets.NAME.data"
        )
    if unknown := [name for name in only if name not in names]:
        raise ConfigError(f"--set is {unknown[0]!r}, and the config has the held-out sets {', '.join(names)}")
    runtime = inline_runtime(
        own_threads(plan.config),
        device=lanes_device(plan.config),
        apart=workers_apart(plan.config, None),
    )
    try:
        with told_of(keys_of_engines(plan.config)), plane_of(plan.config, None) as plane:
            return await _evaluate(plan, only, runtime, plane)
    finally:
        await runtime.close()


async def _evaluate(
    plan: Plan, only: Sequence[str], runtime: Runtime, plane: WeightPublisher
) -> dict[str, dict[str, Any]]:
    engines = await load_engines(plan, runtime, None, returns=False, plane=plane)
    model_reward = await load_model_reward(plan, runtime)
    judges = await load_judges(plan, runtime, returns=False)
    clock = runtime.clock
    results = {}
    async with (
        reward_pools(plan, clock, asker(plan, engines, judges, runtime)) as rewards,
        watchdog(plan),
        serving({"policy": engines}, clock, plane.receiver()),
        serving(judges, clock),
        playing(plan, runtime, here=True) as plan,
    ):
        if (outside := outside_player(plan.workflow)) is not None:
            logger.warning("rollout.agent: agents outside are given tasks at POST %s/tasks", outside.tasks.address)
        for each in evaluations(plan, engines, runtime, rewards, model_reward):
            if not only or each.held_out.name in only:
                results[each.held_out.name] = await each.run(engines.version)
    return results
