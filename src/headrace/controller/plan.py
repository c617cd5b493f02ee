"""What a run will need, read and checked before anything expensive starts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.algorithms.recipes import Recipe, check_dataflow, compose
from headrace.config import ConfigError, TrainConfig
from headrace.config.algorithm import ADVANTAGES, LOSSES
from headrace.experience.dataset import Prompt, PromptDataset
from headrace.models.folder import check_weights
from headrace.models.loading import load_tokenizer, read_generation_stops, read_model_config, resolve_device
from headrace.rollout.filters import Filter, load_filters
from headrace.rollout.plugins import load_function
from headrace.rollout.rewards.pool import RewardPool, check_rows, required_columns
from headrace.rollout.tokens import TextCodec
from headrace.rollout.workflow import Workflow, load_workflow
from headrace.runtime.inline import SystemClock

if TYPE_CHECKING:
    from headrace.controller.memory import MemoryEstimate


@dataclass(frozen=True, slots=True)
class Plan:
    """A config that can be run, with all of its input that is cheap to hold."""

    config: TrainConfig
    recipe: Recipe
    prompts: PromptDataset
    eval_prompts: tuple[Prompt, ...]
    tokenizer: Any
    """A Hugging Face tokenizer."""
    stop_token_ids: tuple[int, ...]
    """The model's end-of-sequence tokens and those of the config."""
    max_context: int
    """Tokens of prompt and response."""
    total_batches: int
    memory: MemoryEstimate
    workflow: Workflow
    filters: tuple[Filter, ...]
    surrogate: Callable[..., Any] | None = None
    """The user's own loss."""
    advantage: Callable[..., Any] | None = None
    """The user's own advantage."""


def make_plan(config: TrainConfig) -> Plan:
    """Read the data, the tokenizer and the model's config; load the user's own classes and functions.

    Raises ConfigError for whatever would make the run fail later. Loads no weights, and leaves nothing running. Not to
    be called from an event loop.
    """
    recipe = compose(config.algorithm)
    check_dataflow(recipe.stages)
    prompts = _dataset(config, config.data.train)
    eval_prompts = tuple(_dataset(config, config.data.eval)) if config.data.eval else ()
    check_weights(config.model.path)
    workflow = load_workflow(config.rollout)
    filters = tuple(load_filters(config.rollout.filters))
    asyncio.run(_check_reward(config))

    # From here on torch is needed, which takes seconds to import: faults in the data are told before.
    from headrace.controller.memory import estimate_memory
    from headrace.engines.embedded.memory import context_limit

    device = resolve_device(config.model.device)
    model_config = read_model_config(config.model.path)
    tokenizer = load_tokenizer(config.model.path)
    context = context_limit(model_config, config.engine)
    text = TextCodec(tokenizer)
    _check_lengths(text, context, prompts, config.data.train)
    _check_lengths(text, context, eval_prompts, config.data.eval or "")
    memory = estimate_memory(config, model_config, device)
    batches = config.trainer.batches
    if batches is None:
        batches = math.ceil(len(prompts) * config.trainer.epochs / config.rollout.prompts_per_batch)
    stops = [*read_generation_stops(config.model.path, tokenizer), *config.rollout.sampling.stop_token_ids]
    return Plan(
        config=config,
        recipe=recipe,
        prompts=prompts,
        eval_prompts=eval_prompts[: config.evaluation.max_prompts],
        tokenizer=tokenizer,
        stop_token_ids=tuple(dict.fromkeys(stops)),
        max_context=context,
        total_batches=batches,
        memory=memory,
        workflow=workflow,
        filters=filters,
        surrogate=_own(
            "algorithm.loss",
            config.algorithm.loss,
            LOSSES,
            ("logprobs", "proximal", "advantages", "mask", "sample_index"),
        ),
        advantage=_own("algorithm.advantage", config.algorithm.advantage, ADVANTAGES, ("data",)),
    )


def _own(key: str, value: str, known: Collection[str], arguments: tuple[str, ...]) -> Callable[..., Any] | None:
    """The user's own function, where `value` is none of the known names."""
    return None if value in known else load_function(value, key, arguments)


async def _check_reward(config: TrainConfig) -> None:
    """Load the reward function where it will run: in a process of its own."""
    pool = RewardPool(config.reward, clock=SystemClock())
    try:
        await pool.start()
    finally:
        await pool.close()


def _dataset(config: TrainConfig, path: str) -> PromptDataset:
    # An environment gives the rewards of its episodes itself, as a rule.
    scores = config.rollout.environment is None
    prompts = PromptDataset.from_jsonl(
        Path(path),
        prompt_column=config.data.prompt_column,
        id_column=config.data.id_column,
        required_columns=required_columns(config.reward) if scores else (),
    )
    if scores:
        check_rows(config.reward, ((f"{path}: prompt {prompt.prompt_id!r}", prompt.row) for prompt in prompts))
    return prompts


def _check_lengths(text: TextCodec, context: int, prompts: Iterable[Prompt], path: str) -> None:
    """Every prompt must leave room for a response of one token at least."""
    for prompt in prompts:
        where = f"{path}: prompt {prompt.prompt_id!r}"
        try:
            tokens = len(text.encode(prompt.content))
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error
        if tokens >= context:
            raise ConfigError(
                f"{where} has {tokens} tokens, and the context holds {context}, prompt and response together; "
                "shorten it, remove the row, or raise engine.max_context"
            )
