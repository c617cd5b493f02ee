"""Which models are plain decoders, told by their config alone: those that the fused runner may compute."""

from __future__ import annotations

from typing import Any

_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Those whose frequencies do not depend on the sequence's length."""


def is_plain_decoder(config: Any) -> bool:
    """Of a Hugging Face config: Llama's kind of decoder, with whole attention in all layers, and nothing beside."""
    rope = getattr(config, "rope_parameters", None) or {}
    layer_types = frozenset(getattr(config, "layer_types", None) or ("full_attention",))
    return (
        config.model_type in _MODEL_TYPES
        and rope.get("rope_type") in _ROPE_TYPES
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and layer_types == {"full_attention"}
        and getattr(config, "sliding_window", None) is None
        and config.hidden_act == "silu"
    )
