"""Which models can be trained as Megatron-Core's, told from their Hugging Face config, and whether it is installed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from headrace.config import ConfigError

PACKAGE = "megatron-core"
MINOR = "0.16"
"""Of the package. Headrace builds on how its modules call each other, which another one may change."""
_ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""`model_type` of those that are mapped: decoders with RMS norms before attention and a gated feed-forward layer."""
_ROTARY = ("default", "linear", "llama3")
"""Kinds of rotary embedding whose angles are a position times a number, and whose cosines are not scaled."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """What of a config decides which parameters there are, and their layout."""

    layers: int
    heads: int
    groups: int
    """Heads of keys and values; each serves heads / groups of the queries that follow each other."""
    head_dim: int
    qkv_bias: bool
    qk_norm: bool
    tied: bool
    """Whether the output layer's matrix is the embedding's."""


def shape_of(config: Any) -> DecoderShape:
    """`config`: of a causal language model, by transformers. Raises ConfigError if it is not mapped."""
    kind = config.model_type
    if kind not in _ARCHITECTURES:
        raise ConfigError(
            f"trainer.backend is megatron, and the model is of type {kind!r}, whose weights are not mapped to "
            f"Megatron-Core's; use one of type {', '.join(_ARCHITECTURES)}, or trainer.backend: hugging_face"
        )
    for key, odd in _oddities(config).items():
        if odd:
            raise ConfigError(
                f"trainer.backend is megatron, and the model's {key} is {odd!r}, which is not mapped to "
                "Megatron-Core's layers; use trainer.backend: hugging_face"
            )
    heads = int(config.num_attention_heads)
    return DecoderShape(
        layers=int(config.num_hidden_layers),
        heads=heads,
        groups=int(config.num_key_value_heads or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        tied=bool(config.tie_word_embeddings),
    )


def installed_version() -> str:
    """Of the package. Raises ConfigError if there is none, or none that Headrace knows. Imports nothing."""
    mend = f"pip install 'headrace[megatron]', which brings {MINOR}"
    try:
        found = version(PACKAGE)
    except PackageNotFoundError as error:
        raise ConfigError(f"trainer.backend is megatron, and {PACKAGE} is not installed: {mend}") from error
    if not found.startswith(f"{MINOR}."):
        raise ConfigError(f"trainer.backend is megatron, and {PACKAGE} {found} is installed: {mend}")
    return found


def _oddities(config: Any) -> dict[str, Any]:
    """By key of the config, a value that changes what is computed, where it has one."""
    rotary = getattr(config, "rope_parameters", None) or {}
    kinds = sorted({*(getattr(config, "layer_types", None) or ())} - {"full_attention"})
    return {
        "hidden_act": None if config.hidden_act == "silu" else config.hidden_act,
        "attention_bias": getattr(config, "attention_bias", False),
        "mlp_bias": getattr(config, "mlp_bias", False),
        "layer_types": kinds,
        "rope_parameters.rope_type": None if (k := rotary.get("rope_type", "default")) in _ROTARY else k,
        "rope_parameters.partial_rotary_factor": None if (s := rotary.get("partial_rotary_factor", 1)) == 1 else s,
    }
