"""The reward model of a run or of an evaluation, as workers."""

from __future__ import annotations

from headrace.controller.building.model_workers import scoring_ranks
from headrace.controller.planning.plan import Plan
from headrace.controller.planning.role_devices import role_device
from headrace.rewards.model_reward import ModelReward
from headrace.roles.columns.reward_model import AskedRewardModel
from headrace.roles.workers.reward import RewardSpec, RewardWorker
from headrace.runtime.protocol import Runtime
from headrace.training.layouts.ranks import layout_of


async def load_model_reward(plan: Plan, runtime: Runtime) -> ModelReward | None:
    """The reward model, if there is one; it loads itself. Raises ConfigError, WorkerLost, WaitTimeout."""
    config, model = plan.config.reward.model, plan.config.model
    if config.path is None:
        return None
    layout, budget = layout_of(config.layout), config.max_tokens_per_microbatch
    device = str(role_device(plan.config, RewardWorker.kind))
    spec = RewardSpec(config.path, model.dtype, device, layout=layout, max_tokens=budget)
    ranks, returns = await scoring_ranks(RewardWorker, spec, runtime, plan.config, layout)
    return ModelReward(AskedRewardModel(ranks, config.layout.tokens_at_once(budget), returns), config.weight)
