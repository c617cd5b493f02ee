"""What a run will need, read and checked before anything expensive starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.algorithms.recipes import DataflowError, Recipe, check_dataflow, compose
from headrace.config import ConfigError, TrainConfig
from headrace.config.trainer import ENTROPY_VOCABULARY
from headrace.controller.given_inputs import check_inputs
from headrace.controller.room import Room
from headrace.controller.threads import check_threads
from headrace.experience.dataset import Prompt, PromptDataset
from headrace.models.folder import check_weights
from headrace.models.loading import (
    check_model,
    check_reward_model,
    load_tokenizer,
    read_generation_stops,
    read_model_config,
    resolve_device,
)
from headrace.observe.trackers.packages import check_packages
from headrace.rollout.filters import Filter, load_filters
from headrace.rollout.plugins import NOTHING_GIVEN, Given, load_function
from headrace.rollout.rewards.pool import RewardPool, check_rows, required_columns
from headrace.rollout.tokens import TextCodec
from headrace.rollout.workflow import Workflow, load_workflow
from headrace.runtime.event_loop import run_to_end
from headrace.runtime.inline import SystemClock

if TYPE_CHECKING:
    from headrace.algorithms.pieces import Pieces
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
    vocab_size: int
    cramped_prompts: int
    """Those that leave room for fewer than `rollout.sampling.max_new_tokens`."""
    total_batches: int
    memory: MemoryEstimate
    workflow: Workflow
    filters: tuple[Filter, ...]
    pieces: Pieces
    """The user's own functions in the place of named ones."""
    stages: tuple[Callable[..., Any], ...] = ()
    """The functions of the user's own stages, in their order."""
    given: Given = field(default_factory=dict)
    """What was given in Python, by the text that stands for it in the config."""

    @property
    def records_entropy(self) -> bool:
        """`trainer.record_entropy`, or what it is unless given."""
        wanted = self.config.trainer.record_entropy
        return self.vocab_size <= ENTROPY_VOCABULARY if wanted is None else wanted

    @property
    def warm_up_batches(self) -> int:
        """First batches in which only the critic learns."""
        return self.config.critic.warmup_batches if self.config.algorithm.needs_critic else 0


def make_plan(config: TrainConfig, given: Given = NOTHING_GIVEN) -> Plan:
    """Read the data, the tokenizer and the model's config; load the user's own classes and functions, but for those
    that are `given`.

    Raises ConfigError for whatever would make the run fail later, and where an event loop runs. Loads no weights, and
    leaves nothing running.
    """
    check_threads(config.runtime.threads)
    check_inputs(config)
    check_packages(config.trackers)
    recipe = _recipe(config)
    prompts = _dataset(config, config.data.train)
    eval_prompts = tuple(_dataset(config, config.data.eval)) if config.data.eval else ()
    check_weights(config.model.path)
    workflow = load_workflow(config.rollout, given)
    filters = load_filters(config.filters, given)
    run_to_end(lambda: _check_reward(config, given), "a plan")

    # From here on torch is needed, which takes seconds to import: faults in the data are told before.
    from headrace.controller.judges import check_judges
    from headrace.controller.memory import estimate_memory
    from headrace.controller.pieces import load_pieces
    from headrace.engines.embedded.memory import context_limit

    device = resolve_device(config.model.device)
    check_model(config.model.path)
    model_config = read_model_config(config.model.path)
    vocab_size = int(model_config.get_text_config().vocab_size)
    _check_others(config, vocab_size)
    tokenizer = load_tokenizer(config.model.path)
    context = context_limit(model_config, config.engine)
    check_judges(config.reward, context)
    text = TextCodec(tokenizer)
    places = getattr(model_config.get_text_config(), "max_position_embeddings", None)
    can_grow = config.engine.max_context is not None and (places is None or context < places)
    room = Room(text, context, vocab_size, can_grow)
    key, limit = "rollout.sampling.max_new_tokens", config.rollout.sampling.max_new_tokens
    cramped = room.check(prompts, config.data.train, key, limit)
    if config.evaluation.max_new_tokens is not None:
        key, limit = "evaluation.max_new_tokens", config.evaluation.max_new_tokens
    room.check(eval_prompts, config.data.eval or "", key, limit)
    _check_stops(config, vocab_size)
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
        vocab_size=vocab_size,
        cramped_prompts=cramped,
        total_batches=batches,
        memory=memory,
        workflow=workflow,
        filters=filters,
        pieces=load_pieces(config),
        stages=tuple(
            load_function(stage.function, f"algorithm.stages: {stage.name}: function", (), keywords=stage.reads)
            for stage in config.algorithm.stages
        ),
        given=given,
    )


def _recipe(config: TrainConfig) -> Recipe:
    """Raises ConfigError where its stages do not fit together."""
    reward_model = config.reward.model.path is not None
    recipe = compose(
        config.algorithm,
        own_proximal=config.own_proximal,
        reward_model=reward_model,
        kept_sets=config.rollout.sampling.truncates,
        sealed_critic=config.seals_critic,
        in_order=config.async_.in_order,
    )
    try:
        check_dataflow(recipe.stages)
    except DataflowError as error:
        raise ConfigError(f"algorithm: {error}") from error
    return recipe


def _check_others(config: TrainConfig, vocab_size: int) -> None:
    """The models beside the policy that are named and will be used; those that score its tokens share its ids."""
    algorithm = config.algorithm
    named = {
        "reference.model": config.reference.model if algorithm.needs_reference else None,
        "teacher.model": config.teacher.model if algorithm.needs_teacher else None,
        "critic.model": config.critic.model if algorithm.needs_critic else None,
        "reward.model.path": config.reward.model.path,
    }
    for key, path in named.items():
        if path is None:
            continue
        check_model(path)
        size = read_model_config(path).get_text_config().vocab_size
        if size != vocab_size:
            raise ConfigError(
                f"{key} is {path!r}, with a vocabulary of {size} tokens, and the policy's has {vocab_size}: they "
                "cannot share token ids; name a model with the policy's tokenizer"
            )
    if config.reward.model.path is not None:
        check_reward_model(config.reward.model.path)


async def _check_reward(config: TrainConfig, given: Given) -> None:
    """Load the reward function where it will run: in a process of its own, of which one will do."""
    pool = RewardPool(config.reward.model_copy(update={"workers": 1}), clock=SystemClock(), given=given)
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


def _check_stops(config: TrainConfig, vocab_size: int) -> None:
    if outside := [i for i in config.rollout.sampling.stop_token_ids if not 0 <= i < vocab_size]:
        raise ConfigError(
            f"rollout.sampling.stop_token_ids has {outside[0]}, which is no token: ids are from 0 to {vocab_size - 1}"
        )
