"""Whether a run can be made of a model with experts, as a config wants it."""

from __future__ import annotations

from typing import Any

from headrace.config import ConfigError, TrainConfig
from headrace.models.experts import experts_per_token, routed_bytes
from headrace.models.routing import ROUTED_TYPES


def check_experts(config: TrainConfig, policy: Any) -> None:
    """`policy`: its Hugging Face config. Raises ConfigError."""
    if config.algorithm.router_replay and not routed_bytes(policy):
        kind = policy.get_text_config().model_type
        raise ConfigError(
            f"algorithm.router_replay is true, and the model is of type {kind}, which has no routers to experts that "
            f"could be told where to route to ({', '.join(ROUTED_TYPES)} have); leave router_replay out"
        )
    if not experts_per_token(policy):
        return
    servers = [section.kind for section in config.engine.sections if section.is_server]
    if servers and not routed_bytes(policy):
        raise ConfigError(
            f"engine.kind is {servers[0]}, and the model, of type {policy.get_text_config().model_type}, has experts "
            f"whose names in a server are not known here (those of {', '.join(ROUTED_TYPES)} are); use engine.kind: "
            "embedded"
        )
    if "sglang" in servers and policy.get_text_config().tie_word_embeddings:
        raise ConfigError(
            "engine.kind is sglang, and the model has experts and an output layer that is its embedding, which SGLang "
            "does not load for such a model; use engine.kind: vllm, or embedded"
        )
    if "sglang" in servers and config.weights.transport == "disk":
        raise ConfigError(
            "engine.kind is sglang, weights.transport is disk, and the model's layers have experts, which lie there as "
            "SGLang does not read them; use weights.transport: shm, or gloo"
        )
