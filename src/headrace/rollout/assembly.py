"""Runners of episodes from the config's words: the same wherever they are to play."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config.errors import ConfigError
from headrace.config.evaluation import HeldOut
from headrace.config.train import TrainConfig
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import SamplingParams
from headrace.experience.text.tokens import TextCodec
from headrace.rewards.reward_pool import Rewards
from headrace.rollout.episode_scoring import EpisodeScoring
from headrace.rollout.episodes import EpisodeRunner
from headrace.rollout.evaluation import PromptRunner
from headrace.rollout.kept_partials import KeptNotes, KeptPartials
from headrace.rollout.policy import PolicySettings
from headrace.rollout.rollout_function import FunctionRunner, FunctionSettings, RolloutFunctions
from headrace.rollout.workflow import Workflow
from headrace.runtime.protocol import Services
from headrace.store.partials import Partials


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of the policy's texts."""

    text: TextCodec
    stop_token_ids: tuple[int, ...]
    """That end a response."""
    max_context: int
    """Tokens of prompt and response."""
    longest: int
    """Prompt in tokens, where longer ones are cut."""


def policy_settings(
    config: TrainConfig, reading: Reading, engines: EnginePool, services: Services, held_out: HeldOut | None = None
) -> PolicySettings:
    """Of the policy that is trained, or of the evaluation of a set. Raises ConfigError if the engine cannot give what
    training needs."""
    sampling = config.rollout.sampling
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
            stop_token_ids=reading.stop_token_ids,
        )
    else:
        params = SamplingParams(
            max_new_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            stop_token_ids=reading.stop_token_ids,
        )
    return PolicySettings(
        engines=engines,
        text=reading.text,
        sampling=params,
        seed=config.seed,
        clock=services.clock,
        services=services,
        request_timeout_s=config.rollout.episode_timeout_s,
        max_context=reading.max_context,
        return_kept=held_out is None,
        return_experts=held_out is None and config.algorithm.router_replay,
        most_kept=config.most_kept if held_out is None else 0,
        stop=sampling.stop,
        observation_role=config.rollout.observation_role,
        truncate_to=reading.longest if config.data.too_long == "truncate_left" else None,
    )


def episode_runner(
    config: TrainConfig,
    workflow: Workflow,
    functions: RolloutFunctions,
    policy: PolicySettings,
    rewards: Rewards,
    held_out: HeldOut | None = None,
    partials: Partials | None = None,
) -> PromptRunner:
    """What plays training's groups, or those of the evaluation of a set: the function that is for it, or else the
    workflow. `partials`: of the run; where a function plays, its notes are kept there, and what it has begun of
    training's."""
    reward = config.reward if held_out is None else held_out.reward
    samples = config.rollout.samples_per_prompt if held_out is None else held_out.samples
    function = functions.training if held_out is None else functions.evaluation
    if function is None:
        return EpisodeRunner(
            workflow=workflow,
            policy=policy,
            rewards=rewards,
            group_rewards=rewards if reward.group else None,
            clock=policy.clock,
            samples_per_prompt=samples,
            episode_timeout_s=config.rollout.episode_timeout_s,
        )
    name = config.rollout.function if held_out is None else config.evaluation.function
    settings = FunctionSettings(
        name=name or "the rollout function",
        evaluation=held_out is not None,
        prompts_per_batch=config.rollout.prompts_per_batch,
        samples_per_prompt=samples,
        max_staleness=config.async_.staleness_bound,
        timeout_s=config.rollout.episode_timeout_s,
        masks_continued=config.rollout.mask_continued and held_out is None,
    )
    kept, notes = None, None
    if partials is not None and policy.services is not None:
        notes = KeptNotes(partials, policy.services, None if held_out is None else held_out.name)
        if held_out is None:
            kept = KeptPartials(partials, policy.services, masks=config.rollout.mask_continued)
    return FunctionRunner(
        function,
        settings,
        policy,
        EpisodeScoring(policy, rewards, rewards if reward.group else None),
        buffer_filter=functions.buffer_filter if held_out is None else None,
        partials=kept,
        notes=notes,
    )
