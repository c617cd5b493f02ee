"""Scores a model on held-out prompts, apart from any run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.config import ConfigError
from headrace.controller.episode_runners import evaluations
from headrace.controller.judge_engines import asker, load_judges, serving
from headrace.controller.models import load_engines
from headrace.controller.planning.plan import Plan
from headrace.controller.processors import own_threads
from headrace.controller.reward_model import load_model_reward
from headrace.controller.reward_pools import reward_pools
from headrace.controller.threads import inline_runtime
from headrace.controller.watching import watchdog
from headrace.controller.worker_processes import worker_processes
from headrace.models.loading import resolve_device


async def evaluate(plan: Plan, only: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """By the name of each held-out set its result (see `Evaluation.run`); of those named in `only`, if any are.

    Raises ConfigError if there is none.
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
        device=resolve_device(plan.config.model.device),
        processes=worker_processes(plan.config, None),
    )
    try:
        engines = await load_engines(plan, runtime, returns=False)
        model_reward = await load_model_reward(plan, runtime)
        judges = await load_judges(plan, runtime)
        clock = runtime.clock
        results = {}
        async with (
            reward_pools(plan, clock, asker(plan, engines, judges, clock)) as rewards,
            watchdog(plan),
            serving({"policy": engines, **judges}, clock),
        ):
            for each in evaluations(plan, engines, clock, rewards, model_reward):
                if not only or each.held_out.name in only:
                    results[each.held_out.name] = await each.run(engines.version)
    finally:
        await runtime.close()
    return results
