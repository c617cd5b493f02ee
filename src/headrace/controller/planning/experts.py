"""Whether a run can be made of a model with experts, as a config wants it."""

from __future__ import annotations

from typing import Any

from headrace.config import ConfigError, TrainConfig
from headrace.models.experts import experts_per_token


def check_experts(config: TrainConfig, policy: Any) -> None:
    """`policy`: its Hugging Face config. Raises ConfigError."""
    if not experts_per_token(policy):
        return
    if server := next((section.kind for section in config.engine.sections if section.is_server), None):
        raise ConfigError(
            f"engine.kind is {server}, and the model's layers have experts, whose new weights a server does not take "
            "as they are published; use engine.kind: embedded"
        )
