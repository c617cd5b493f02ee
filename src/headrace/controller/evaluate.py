"""Scores a model on held-out prompts, apart from any run."""

from __future__ import annotations

from typing import Any

from headrace.config import ConfigError
from headrace.controller.episodes import held_out_evaluation
from headrace.controller.judge_engines import asker, load_judges, serving
from headrace.controller.models import load_engine, load_model_reward
from headrace.controller.plan import Plan
from headrace.controller.threads import inline_runtime
from headrace.controller.watching import watchdog
from headrace.models.loading import resolve_device
from headrace.rollout.rewards.pool import RewardPool


async def evaluate(plan: Plan) -> dict[str, Any]:
    """The result of one evaluation (see `Evaluation.run`). Raises ConfigError if there are no held-out prompts."""
    if not plan.eval_prompts:
        raise ConfigError("the config names no held-out prompts; set data.eval to a JSONL file")
    runtime = inline_runtime(plan.config.runtime.threads, device=resolve_device(plan.config.model.device))
    try:
        engine = await load_engine(plan, runtime)
        model_reward = await load_model_reward(plan, runtime)
        judges = await load_judges(plan, runtime)
        clock = runtime.clock
        ask = asker(plan, engine, judges, clock)
        rewards = RewardPool(plan.config.reward, clock=clock, ask=ask, given=plan.given)
        try:
            await rewards.start()
            async with watchdog(plan), serving({"policy": engine, **judges}, clock):
                _, result = await held_out_evaluation(plan, engine, clock, rewards, model_reward).run()
        finally:
            await rewards.close()
    finally:
        await runtime.close()
    return result
