"""The runners of episodes: for training, and for the evaluation of each held-out set."""

from __future__ import annotations

from collections.abc import Callable

from headrace.config.evaluation import HeldOut
from headrace.controller.building.reward_pools import RewardPools
from headrace.controller.planning.plan import Plan
from headrace.engines.pool import EnginePool
from headrace.rewards.model_reward import ModelReward
from headrace.rewards.reward_pool import Rewards
from headrace.rollout import assembly
from headrace.rollout.assembly import Reading
from headrace.rollout.evaluation import Ended, Evaluation, PromptRunner
from headrace.rollout.policy import PolicySettings
from headrace.runtime.protocol import Services
from headrace.store.partials import Partials


def policy_settings(
    plan: Plan, engines: EnginePool, services: Services, held_out: HeldOut | None = None
) -> PolicySettings:
    """See `rollout.assembly.policy_settings`."""
    fit = plan.fit if held_out is None else plan.held_out_fits[held_out.name]
    reading = Reading(plan.codec(), plan.stop_token_ids, plan.max_context, fit.longest)
    return assembly.policy_settings(plan.config, reading, engines, services, held_out)


def episode_runner(
    plan: Plan,
    engines: EnginePool,
    services: Services,
    rewards: Rewards,
    held_out: HeldOut | None = None,
    partials: Partials | None = None,
) -> PromptRunner:
    """What plays training's groups, or those of the evaluation of a set, in this process; see
    `rollout.assembly.episode_runner`. Raises ConfigError as `policy_settings`."""
    policy = policy_settings(plan, engines, services, held_out)
    return assembly.episode_runner(plan.config, plan.workflow, plan.functions, policy, rewards, held_out, partials)


def evaluations(
    plan: Plan,
    engines: EnginePool,
    services: Services,
    rewards: RewardPools,
    model_reward: ModelReward | None,
    ended: Ended | None = None,
    runner: Callable[[HeldOut], PromptRunner] | None = None,
    partials: Partials | None = None,
) -> tuple[Evaluation, ...]:
    """Of each held-out set of the plan; `ended` is awaited with the answers to each prompt. `runner` of a set; it plays
    in this process unless given. `partials`: of the run, if there is one."""
    slots = 2 * plan.config.engine.max_concurrent_sequences
    return tuple(
        Evaluation(
            each,
            episode_runner(plan, engines, services, rewards.of(each), each, partials)
            if runner is None
            else runner(each),
            plan.held_out[each.name],
            plan.codec().decode,
            services,
            concurrency=max(slots // each.samples, 1),
            model_reward=None if each.own_reward else model_reward,
            ended=ended,
        )
        for each in plan.config.held_out
    )
