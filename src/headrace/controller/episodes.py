"""The runners of episodes: for training, and for evaluation."""

from __future__ import annotations

from collections.abc import Callable

from headrace.config import ConfigError
from headrace.controller.plan import Plan
from headrace.engines.protocol import Engine, SamplingParams
from headrace.experience.sample import Group
from headrace.rollout.episodes import EpisodeRunner
from headrace.rollout.evaluation import Evaluation
from headrace.rollout.policy import PolicySettings
from headrace.rollout.rewards.model import ModelReward
from headrace.rollout.rewards.pool import RewardPool
from headrace.rollout.router import Router
from headrace.runtime.protocol import Clock


def policy_settings(plan: Plan, engine: Engine, clock: Clock, *, evaluation: bool) -> PolicySettings:
    """Of the policy that is trained, or of evaluation. Raises ConfigError if the engine cannot give what training
    needs."""
    config, sampling = plan.config, plan.config.rollout.sampling
    if sampling.truncates and not (evaluation or engine.gives_kept_sets):
        raise ConfigError(
            f"rollout.sampling has top_p {sampling.top_p:g} and top_k {sampling.top_k}, but the engine cannot say "
            "which tokens they keep, and without that nothing is trained as it was sampled; use top_p 1, top_k 0, or "
            "another engine"
        )
    if evaluation:
        params = SamplingParams(
            max_new_tokens=config.evaluation.max_new_tokens or sampling.max_new_tokens,
            temperature=config.evaluation.temperature,
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
    return PolicySettings(
        router=Router([engine]),
        text=plan.codec(),
        sampling=params,
        seed=config.seed,
        clock=clock,
        request_timeout_s=config.rollout.episode_timeout_s,
        max_context=plan.max_context,
        return_kept=not evaluation,
        stop=sampling.stop,
        observation_role=config.rollout.observation_role,
        truncate_to=(plan.eval_fit if evaluation else plan.fit).longest
        if config.data.too_long == "truncate_left"
        else None,
    )


def episode_runner(plan: Plan, engine: Engine, clock: Clock, rewards: RewardPool, *, evaluation: bool) -> EpisodeRunner:
    """The runner of training episodes, or that of evaluation. Raises ConfigError as `policy_settings`."""
    config = plan.config
    return EpisodeRunner(
        workflow=plan.workflow,
        policy=policy_settings(plan, engine, clock, evaluation=evaluation),
        rewards=rewards,
        group_rewards=rewards if config.reward.group else None,
        clock=clock,
        samples_per_prompt=1 if evaluation else config.rollout.samples_per_prompt,
        episode_timeout_s=config.rollout.episode_timeout_s,
    )


def held_out_evaluation(
    plan: Plan,
    engine: Engine,
    clock: Clock,
    rewards: RewardPool,
    model_reward: ModelReward | None,
    ended: Callable[[Group], None] = lambda group: None,
) -> Evaluation:
    """Of the plan's held-out prompts; `ended` is called with each answer."""
    return Evaluation(
        engine,
        episode_runner(plan, engine, clock, rewards, evaluation=True),
        plan.eval_prompts,
        plan.codec().decode,
        clock,
        concurrency=2 * plan.config.engine.max_concurrent_sequences,
        timeout_s=plan.config.evaluation.timeout_s,
        model_reward=model_reward,
        ended=ended,
    )
