"""The policy's model as a plan reads it, before anything of it is loaded, and the models that go with it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from headrace.config import ConfigError, TrainConfig
from headrace.controller.planning.backends import check_mapped
from headrace.controller.planning.context_room import Room
from headrace.controller.planning.experts import check_experts
from headrace.controller.planning.judges import check_judges
from headrace.controller.planning.layouts import check_layouts
from headrace.controller.planning.origin import check_origin
from headrace.controller.planning.role_devices import policy_device, role_device
from headrace.engines.embedded.cache_plan import context_limit
from headrace.experience.text.tokens import TextCodec
from headrace.models.loading import (
    check_model,
    check_reward_model,
    load_tokenizer,
    read_generation_stops,
    read_model_config,
)
from headrace.models.rope_reach import positions_of, reach_of
from headrace.store.origin import Origin


@dataclass(frozen=True, slots=True)
class PolicyModel:
    config: Any
    """Of Hugging Face."""
    device: torch.device
    tokenizer: Any
    """A Hugging Face tokenizer."""
    context: int
    """Tokens of prompt and response."""

    @property
    def vocab_size(self) -> int:
        return int(self.config.get_text_config().vocab_size)

    def room(self, config: TrainConfig, text: TextCodec) -> Room:
        """For prompts and responses."""
        places = positions_of(self.config)
        can_grow = config.engine.max_context is not None and (places is None or self.context < places)
        too_long, most = config.data.too_long, config.data.max_prompt_tokens
        return Room(text, self.tokenizer, self.context, self.vocab_size, can_grow, too_long, most)

    def stops(self, config: TrainConfig) -> tuple[int, ...]:
        """The model's end-of-sequence tokens and those of the config, each once."""
        own = read_generation_stops(config.model.path, self.tokenizer)
        return tuple(dict.fromkeys([*own, *config.rollout.sampling.stop_token_ids]))


def read_policy(config: TrainConfig, origin: Origin | None) -> PolicyModel:
    """`origin`: what the run begins from, if not from the model at `model.path`. Raises ConfigError for a model that
    the run could not be made of, and for one that could not stand beside it."""
    path, device = config.model.path, policy_device(config)
    check_model(path)
    model_config = read_model_config(path)
    check_experts(config, model_config)
    check_mapped(config, model_config, device)
    check_layouts(config, model_config, partial(role_device, config))
    context = context_limit(model_config, config.engine)
    _check_others(config, int(model_config.get_text_config().vocab_size), context)
    if origin is not None:
        check_origin(config, origin)
    policy = PolicyModel(model_config, device, load_tokenizer(path), context)
    for reward in config.rewards:
        check_judges(reward, policy.context)
    return policy


def check_stops(config: TrainConfig, vocab_size: int) -> None:
    """Raises ConfigError for an id that is no token's."""
    if outside := [i for i in config.rollout.sampling.stop_token_ids if not 0 <= i < vocab_size]:
        raise ConfigError(
            f"rollout.sampling.stop_token_ids has {outside[0]}, which is no token: ids are from 0 to {vocab_size - 1}"
        )


def _check_others(config: TrainConfig, vocab_size: int, context: int) -> None:
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
        own = read_model_config(path)
        size, reach = own.get_text_config().vocab_size, reach_of(own)
        if size != vocab_size:
            raise ConfigError(
                f"{key} is {path!r}, with a vocabulary of {size} tokens, and the policy's has {vocab_size}: they "
                "cannot share token ids; name a model with the policy's tokenizer"
            )
        if reach is not None and context > reach.positions:
            raise ConfigError(
                f"{key} is {path!r}, whose {reach.words}, and engine.max_context is {context}; set that to "
                f"{reach.positions} or less"
            )
    if config.reward.model.path is not None:
        check_reward_model(config.reward.model.path)
