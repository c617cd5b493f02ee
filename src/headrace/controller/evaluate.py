"""Scores a model on held-out prompts, apart from any run."""

from __future__ import annotations

from typing import Any

from headrace.config import ConfigError
from headrace.controller.parts import held_out_evaluation, load_engine
from headrace.controller.plan import Plan
from headrace.controller.threads import inline_runtime
from headrace.rollout.rewards.pool import RewardPool


async def evaluate(plan: Plan) -> dict[str, Any]:
    """The result of one evaluation (see `Evaluation.run`). Raises ConfigError if there are no held-out prompts."""
    if not plan.eval_prompts:
        raise ConfigError("the config names no held-out prompts; set data.eval to a JSONL file")
    runtime = inline_runtime(plan.config.runtime.threads)
    rewards = RewardPool(plan.config.reward, clock=runtime.clock)
    try:
        await rewards.start()
        engine = await load_engine(plan, runtime)
        await engine.start()
        try:
            _, result = await held_out_evaluation(plan, engine, runtime.clock, rewards).run()
        finally:
            await engine.stop()
    finally:
        await rewards.close()
        await runtime.close()
    return result
