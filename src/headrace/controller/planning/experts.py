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
    if server := next((section.kind for section in config.engine.sections if section.is_server), None):
        raise ConfigError(
            f"engine.kind is {server}, and the model's layers have experts, whose new weights a server does not take "
            "as they are published; use engine.kind: embedded"
        )
