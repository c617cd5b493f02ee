"""What a run's workers take of memory, by use: weights and what goes with them, and what passes take on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from headrace.config import TrainConfig
from headrace.config.layout import LayoutConfig
from headrace.config.roles import CriticConfig
from headrace.config.trainer import TrainerConfig
from headrace.config.values.dtypes import ITEM_BYTES
from headrace.controller.planning.activations import (
    DecoderShape,
    engine_bytes,
    graphs_bytes,
    passes_bytes,
    scored_bytes,
)
from headrace.controller.planning.cache_memory import engine_dtype, plan_kv_cache
from headrace.controller.planning.engine_memory import engine_uses
from headrace.controller.planning.judges import own_judges
from headrace.controller.planning.memory_by_turns import OF_LENT, keeps_reference
from headrace.controller.planning.planned_model import PlannedModel
from headrace.controller.planning.role_devices import is_elsewhere
from headrace.controller.planning.table_size import most_sampled
from headrace.controller.planning.trained_memory import (
    gathered,
    hybrid_bytes_of,
    scored_bytes_of,
    trained_bytes_of,
    trainer_uses,
)
from headrace.controller.planning.transports import transport_of
from headrace.engines.embedded.cache_plan import context_limit
from headrace.models.loading import count_parameters, read_model_config

PLANE = "weight plane: newest version, and the next"
_LEAVING = "weight plane: the copy that leaves"


def trained_sections(config: TrainConfig) -> dict[str, TrainerConfig | CriticConfig]:
    """The sections of those that learn, by the names of their models."""
    return {"trainer": config.trainer} | ({"critic": config.critic} if config.algorithm.needs_critic else {})


def fixed_uses(
    config: TrainConfig,
    models: Mapping[str, PlannedModel],
    device: torch.device,
    *,
    policy_on: torch.device | None = None,
    elsewhere: bool = False,
) -> dict[str, int]:
    """Weights and what goes with them, and the judges' caches. `policy_on`: the policy's device, if it is another.
    `elsewhere`: nobody here can ask what is free there."""
    trainer_bytes, engine_itemsize = ITEM_BYTES[config.model.dtype], ITEM_BYTES[engine_dtype(config)]
    policy = models["trainer"]
    parameters = policy.parameters
    of_engine = engine_itemsize * (parameters + _laid_out_anew(policy.config))
    engine_weights = config.engine.total * of_engine
    layout = config.trainer.layout
    uses = {
        **trainer_uses(config.trainer, policy, config.model.dtype, device),
        "engine: weights": engine_weights,
        "engine: next version while it is received": engine_weights,
        f"{OF_LENT}weights": config.engine.lent * of_engine,
    }
    transport = transport_of(config, policy_on or device)
    if transport in ("memory", "cuda_ipc") or (transport == "shm" and device.type == "cpu"):
        uses[PLANE] = 2 * trainer_bytes * parameters
    elif not layout.stage:  # ranks that cut it up write it where it leaves from as it is
        uses[_LEAVING] = trainer_bytes * parameters
    algorithm = config.algorithm

    def scores(name: str, layout: LayoutConfig) -> None:
        uses[f"{name}: weights"] = scored_bytes_of(layout, models[name], config.model.dtype, device)
        if layout.stage:
            uses[f"{name}: weights gathered for a pass"] = trainer_bytes * gathered(layout, models[name], device)

    if keeps_reference(config):
        uses["reference: weights"], _ = hybrid_bytes_of(config.trainer, policy, config.model.dtype, device)
    elif algorithm.needs_reference:
        scores("reference", config.reference.layout)
    if config.copies_proximal:
        scores("proximal", config.proximal.layout)
    if algorithm.needs_teacher:
        scores("teacher", config.teacher.layout)
    if algorithm.needs_critic:
        of_critic, critic = config.critic.layout, models["critic"]
        trained = trained_bytes_of(config.critic, critic, config.model.dtype, device)
        uses["critic: weights, gradients and moments (float32)"] = trained.total
        if config.model.dtype == "bfloat16" and not of_critic.stage:
            uses["critic: bfloat16 weights"] = of_critic.model_replicas * trainer_bytes * critic.parameters
        if of_critic.stage:
            uses["critic: weights gathered for a pass"] = trainer_bytes * gathered(of_critic, critic, device)
    if config.reward.model.path is not None:
        scores("reward model", config.reward.model.layout)
    for judge in own_judges(config.rewards):
        asked, dtype = read_model_config(judge.path), judge.engine.dtype or config.model.dtype
        uses[f"judge {judge.path}: weights"] = ITEM_BYTES[dtype] * (count_parameters(asked) + _laid_out_anew(asked))
        unknown = elsewhere or is_elsewhere(config, "judge")
        cache = plan_kv_cache(asked, judge.engine, dtype, device, elsewhere=unknown)
        uses[f"judge {judge.path}: KV cache"] = cache.bytes_wanted
    return {use: size for use, size in uses.items() if size}


def activation_uses(config: TrainConfig, models: Mapping[str, PlannedModel], device: torch.device) -> dict[str, int]:
    """Of all passes, at their height: the lanes compute at the same time."""
    model_config, itemsize = models["trainer"].config, ITEM_BYTES[config.model.dtype]
    shapes = {name: DecoderShape.of(model.config) for name, model in models.items()}
    algorithm, longest = config.algorithm, most_sampled(config, context_limit(model_config, config.engine))
    checkpointing = config.model.gradient_checkpointing
    uses = {}
    for name, own in trained_sections(config).items():
        uses[f"{name}: activations"] = passes_bytes(own, shapes[name], longest, itemsize, checkpointing=checkpointing)
    own_reference = algorithm.needs_reference and not keeps_reference(config)
    scoring = {
        "reference": (own_reference, config.reference.max_tokens_per_microbatch),
        "proximal": (config.copies_proximal, config.proximal.max_tokens_per_microbatch),
        "teacher": (algorithm.needs_teacher, config.teacher.max_tokens_per_microbatch),
        "reward model": (config.reward.model.path is not None, config.reward.model.max_tokens_per_microbatch),
    }
    for name, (computes, budget) in scoring.items():
        if computes:
            uses[f"{name}: activations"] = scored_bytes(shapes[name], max(budget, longest), itemsize)
    uses |= engine_uses(config, model_config, device)
    for judge in own_judges(config.rewards):
        asked = read_model_config(judge.path)
        shape, context = DecoderShape.of(asked), context_limit(asked, judge.engine)
        slots, of_number = judge.engine.max_concurrent_sequences, ITEM_BYTES[judge.engine.dtype or config.model.dtype]
        computed = engine_bytes(shape, slots, judge.engine.prefill_tokens_per_step, of_number, context)
        uses[f"judge {judge.path}: activations and logits"] = computed
        uses[f"judge {judge.path}: CUDA graphs"] = graphs_bytes(shape, slots, context)
    return uses


def _laid_out_anew(model_config: Any) -> int:
    """Numbers of the output layer that an engine has beside the model's own: where that is its embedding."""
    text = model_config.get_text_config()
    return text.vocab_size * text.hidden_size if model_config.tie_word_embeddings else 0
