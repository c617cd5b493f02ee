"""The language models that judge, as the config names them: each that is not the policy has an engine of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.config import ConfigError, EngineConfig
from headrace.config.reward import RewardConfig
from headrace.engines.embedded.cache_plan import context_limit
from headrace.models.loading import check_model, load_tokenizer, read_model_config


@dataclass(frozen=True, slots=True)
class OwnJudge:
    """A judge that is not the policy."""

    path: str
    engine: EngineConfig


def own_judges(rewards: Iterable[RewardConfig]) -> tuple[OwnJudge, ...]:
    """Of all of them, each model once."""
    judges = [judge for reward in rewards for judge in reward.judges]
    found = {judge.model: OwnJudge(judge.model, judge.engine) for judge in judges if judge.model is not None}
    return tuple(found.values())


def check_judges(config: RewardConfig, policy_context: int) -> None:
    """Raises ConfigError for a judge that could not be loaded, or whose context leaves no room for a question.

    `policy_context`: tokens of the policy's engine.
    """
    contexts: dict[str | None, int] = {None: policy_context}
    for own in own_judges([config]):
        check_model(own.path)
        load_tokenizer(own.path)
        contexts[own.path] = context_limit(read_model_config(own.path), own.engine)
    for judge in config.judges:
        context = contexts[judge.model]
        if judge.max_new_tokens >= context:
            raise ConfigError(
                f"a judge has max_new_tokens {judge.max_new_tokens}, and its context holds {context} tokens, question "
                "and answer together; lower judge.max_new_tokens"
            )
