"""The language models that judge: each named one on an engine of its own, and the policy on its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from headrace.config import ConfigError, EngineConfig
from headrace.config.data import JudgeConfig, RewardConfig
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.embedded.memory import context_limit
from headrace.engines.protocol import Engine
from headrace.models.folder import check_weights
from headrace.models.loading import (
    load_causal_lm,
    load_tokenizer,
    read_generation_stops,
    read_model_config,
    resolve_device,
)
from headrace.roles.actor import TRAINER_LANE
from headrace.rollout.rewards.judge import Ask, JudgeModel
from headrace.rollout.router import Router
from headrace.runtime.protocol import Clock, Runtime

if TYPE_CHECKING:
    from headrace.controller.plan import Plan

JUDGE_LANE = "judge"


@dataclass(frozen=True, slots=True)
class OwnJudge:
    """A judge that is not the policy."""

    path: str
    engine: EngineConfig


def own_judges(config: RewardConfig) -> tuple[OwnJudge, ...]:
    """Each model once."""
    found = {judge.model: OwnJudge(judge.model, judge.engine) for judge in config.judges if judge.model is not None}
    return tuple(found.values())


def check_judges(config: RewardConfig, policy_context: int) -> None:
    """Raises ConfigError for a judge that could not be loaded, or whose context leaves no room for a question.

    `policy_context`: tokens of the policy's engine.
    """
    contexts: dict[str | None, int] = {None: policy_context}
    for own in own_judges(config):
        check_weights(own.path)
        load_tokenizer(own.path)
        contexts[own.path] = context_limit(read_model_config(own.path), own.engine)
    for judge in config.judges:
        context = contexts[judge.model]
        if judge.max_new_tokens >= context:
            raise ConfigError(
                f"a judge has max_new_tokens {judge.max_new_tokens}, and its context holds {context} tokens, question "
                "and answer together; lower judge.max_new_tokens"
            )


async def load_judges(plan: Plan, runtime: Runtime) -> dict[str, EmbeddedEngine]:
    """Their engines by the model's name, not started. Computing on a lane of their own, beside the policy's."""
    model = plan.config.model
    device = resolve_device(model.device)
    engines = {}
    for own in own_judges(plan.config.reward):
        dtype = getattr(torch, own.engine.dtype or model.dtype)
        loaded = await runtime.compute(TRAINER_LANE, partial(load_causal_lm, own.path, dtype=dtype, device=device))
        engines[own.path] = EmbeddedEngine(loaded, config=own.engine, runtime=runtime, lane=JUDGE_LANE)
    return engines


def asker(plan: Plan, policy: Engine, judges: Mapping[str, Engine], clock: Clock) -> Ask:
    """What answers the questions of all judges of `plan`. `judges`: see `load_judges`."""
    seed = plan.config.seed
    models: dict[str | None, JudgeModel] = {
        None: JudgeModel(
            Router([policy]),
            plan.tokenizer,
            stop_token_ids=plan.stop_token_ids,
            max_context=plan.max_context,
            seed=seed,
            clock=clock,
        )
    }
    for own in own_judges(plan.config.reward):
        tokenizer = load_tokenizer(own.path)
        models[own.path] = JudgeModel(
            Router([judges[own.path]]),
            tokenizer,
            stop_token_ids=read_generation_stops(own.path, tokenizer),
            max_context=context_limit(read_model_config(own.path), own.engine),
            seed=seed,
            clock=clock,
        )

    async def ask(config: JudgeConfig, values: Mapping[str, str]) -> str:
        return await models[config.model].answer(config, values)

    return ask


@asynccontextmanager
async def serving(engines: Mapping[str, Engine]) -> AsyncGenerator[None]:
    """The engines, started one after another, and stopped at the end."""
    async with AsyncExitStack() as stack:
        for engine in engines.values():
            await engine.start()
            stack.push_async_callback(engine.stop)
        yield
