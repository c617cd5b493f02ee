"""The reward model of a run or of an evaluation, as a worker."""

from __future__ import annotations

from headrace.controller.building.model_workers import model_return, started
from headrace.controller.planning.plan import Plan
from headrace.models.loading import resolve_device
from headrace.rewards.model_reward import ModelReward
from headrace.roles.columns.reward_model import AskedRewardModel
from headrace.roles.workers.reward import RewardSpec, RewardWorker
from headrace.runtime.protocol import Runtime


async def load_model_reward(plan: Plan, runtime: Runtime) -> ModelReward | None:
    """The reward model, if there is one; it loads itself. Raises ConfigError, WorkerLost, WaitTimeout."""
    config, model = plan.config.reward.model, plan.config.model
    if config.path is None:
        return None
    spec = RewardSpec(config.path, model.dtype, str(resolve_device(model.device)))
    workers = await started(RewardWorker, spec, runtime, plan.config)
    returns = model_return(RewardWorker.kind, workers, runtime, plan.config)
    return ModelReward(AskedRewardModel(workers, config.max_tokens_per_microbatch, returns), config.weight)
