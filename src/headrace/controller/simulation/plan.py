"""The plan of a run that is simulated: neither its model nor its data need be there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headrace.algorithms.recipes import check_dataflow
from headrace.config import ConfigError, TrainConfig
from headrace.controller.planning.context_room import Fit
from headrace.controller.planning.memory_estimate import MemoryEstimate
from headrace.controller.planning.plan import Plan, compose_recipe
from headrace.engines.embedded.cache_plan import CachePlan
from headrace.experience.prompts.dataset import Prompt, PromptDataset
from headrace.experience.text.chat_template import ChatTemplate
from headrace.rollout.filters import load_filters
from headrace.rollout.workflow import load_workflow
from headrace.training.own_functions import load_pieces, load_stage_functions

EOS = 0
_FIRST = 0xE000
"""Where Unicode has places for private use: token 0."""
_TABLE_GIB = 64.0


class SimulatedTokenizer:
    """A token a character. Implements `headrace.experience.text.tokens.HFTokenizer`."""

    eos_token_id: int | None = EOS
    chat_template: Any = None

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [1 + ord(character) % 1024 for character in text]}

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> str:
        ids = np.asarray(token_ids, np.uint32)
        if skip_special_tokens:
            ids = ids[ids != EOS]
        return (ids % 4096 + _FIRST).astype("<u4").tobytes().decode("utf-32-le")

    def convert_tokens_to_ids(self, token: str) -> None:
        return None

    def convert_ids_to_tokens(self, token: int) -> None:
        return None

    def apply_chat_template(
        self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool, **more: Any
    ) -> str:
        raise ValueError("a simulated prompt is text")


def simulated_plan(config: TrainConfig, *, prompts: int, slots: int, max_context: int, vocab_size: int) -> Plan:
    """Of `prompts` in each set; `slots`: sequences that the engine decodes together. Raises ConfigError."""
    _check(config)
    # Neither this machine's memory nor its devices have a say.
    table = {"table_gib": config.async_.table_gib or _TABLE_GIB}
    config = config.model_copy(
        update={
            "async_": config.async_.model_copy(update=table),
            "model": config.model.model_copy(update={"device": "cpu"}),
        }
    )
    recipe = compose_recipe(config)
    check_dataflow(recipe.stages)
    batches = config.trainer.batches
    if batches is None:
        batches = math.ceil(prompts * config.trainer.epochs / config.rollout.prompts_per_batch)
    tokenizer = SimulatedTokenizer()
    fit = Fit(cramped=0, too_long=(), longest=max_context, tokenised=0)
    return Plan(
        config=config,
        recipe=recipe,
        prompts=PromptDataset(_prompts("p", prompts)),
        held_out={
            each.name: tuple(_prompts(each.name, min(prompts, each.max_prompts or prompts))) for each in config.held_out
        },
        tokenizer=tokenizer,
        stop_token_ids=(EOS,),
        max_context=max_context,
        vocab_size=vocab_size,
        template=ChatTemplate.of(config.data.template, tokenizer),
        fit=fit,
        held_out_fits={each.name: fit for each in config.held_out},
        notes=(),
        total_batches=batches,
        memory=MemoryEstimate(0, {}, "no host", 0, CachePlan(slots, max_context, 0), {}),
        transport="memory",
        workflow=load_workflow(config.rollout),
        filters=load_filters(config.filters, {}),
        pieces=load_pieces(config),
        stages=load_stage_functions(config),
    )


def _check(config: TrainConfig) -> None:
    """Raises ConfigError for what is not simulated."""
    if config.rollouts_only or config.data.rollouts is not None or config.from_.run is not None:
        raise ConfigError("only runs that generate and train, from the model, are simulated; see docs/design.md")
    if config.reward.model.path is not None or any(reward.judges for reward in config.rewards):
        raise ConfigError("reward models and judges are not simulated; leave reward.model and judges out")
    if config.rollout.workers not in ("auto", 0):
        raise ConfigError("processes are not simulated; set rollout.workers to 0")
    if config.rollout.sampling.truncates:
        raise ConfigError("kept sets are not simulated; set rollout.sampling.top_p to 1 and top_k to 0")
    if config.algorithm.router_replay:
        raise ConfigError("experts are not simulated; leave algorithm.router_replay out")


def _prompts(name: str, count: int) -> list[Prompt]:
    return [Prompt(f"{number}", f"{name} {number}", {"prompt": f"{name} {number}"}) for number in range(count)]
