"""The runners of episodes: for training, and for the evaluation of each held-out set."""

from __future__ import annotations

from headrace.config import ConfigError
from headrace.config.evaluation import HeldOut
from headrace.controller.planning.plan import Plan
from headrace.controller.reward_pools import RewardPools
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import SamplingParams
from headrace.rewards.model import ModelReward
from headrace.rewards.pool import Rewards
from headrace.rollout.episodes import EpisodeRunner
from headrace.rollout.evaluation import Ended, Evaluation
from headrace.rollout.policy import PolicySettings
from headrace.runtime.protocol import Clock


def policy_settings(plan: Plan, engines: EnginePool, clock: Clock, held_out: HeldOut | None = None) -> PolicySettings:
    """Of the policy that is trained, or of the evaluation of a set. Raises ConfigError if the engine cannot give what
    training needs."""
    config, sampling = plan.config, plan.config.rollout.sampling
    if sampling.truncates and held_out is None and not engines.gives_kept_sets:
        raise ConfigError(
            f"rollout.sampling has top_p {sampling.top_p:g} and top_k {sampling.top_k}, but the engine cannot say "
            "which tokens they keep, and without that nothing is trained as it was sampled; use top_p 1, top_k 0, or "
            "another engine"
        )
    if held_out is not None:
        params = SamplingParams(
            max_new_tokens=held_out.max_new_tokens,
            temperature=held_out.temperature,
            stop_token_ids=plan.stop_token_ids,
        )
    else:
        params = SamplingParams(
            max_new_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            stop_token_ids=plan.stop_token_ids,
        )
    fit = plan.fit if held_out is None else plan.held_out_fits[held_out.name]
    return PolicySettings(
        engines=engines,
        text=plan.codec(),
        sampling=params,
        seed=config.seed,
        clock=clock,
        request_timeout_s=config.rollout.episode_timeout_s,
        max_context=plan.max_context,
        return_kept=held_out is None,
        stop=sampling.stop,
        observation_role=config.rollout.observation_role,
        truncate_to=fit.longest if config.data.too_long == "truncate_left" else None,
    )


def episode_runner(
    plan: Plan, engines: EnginePool, clock: Clock, rewards: Rewards, held_out: HeldOut | None = None
) -> EpisodeRunner:
    """The runner of training episodes, or that of the evaluation of a set. Raises ConfigError as `policy_settings`."""
    config = plan.config
    reward = config.reward if held_out is None else held_out.reward
    return EpisodeRunner(
        workflow=plan.workflow,
        policy=policy_settings(plan, engines, clock, held_out),
        rewards=rewards,
        group_rewards=rewards if reward.group else None,
        clock=clock,
        samples_per_prompt=config.rollout.samples_per_prompt if held_out is None else held_out.samples,
        episode_timeout_s=config.rollout.episode_timeout_s,
    )


def evaluations(
    plan: Plan,
    engines: EnginePool,
    clock: Clock,
    rewards: RewardPools,
    model_reward: ModelReward | None,
    ended: Ended | None = None,
) -> tuple[Evaluation, ...]:
    """Of each held-out set of the plan; `ended` is awaited with the answers to each prompt."""
    slots = 2 * plan.config.engine.max_concurrent_sequences
    return tuple(
        Evaluation(
            each,
            episode_runner(plan, engines, clock, rewards.of(each), each),
            plan.held_out[each.name],
            plan.codec().decode,
            clock,
            concurrency=max(slots // each.samples, 1),
            model_reward=None if each.own_reward else model_reward,
            ended=ended,
        )
        for each in plan.config.held_out
    )
