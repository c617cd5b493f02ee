"""Which model a config describes: what is left of it for a comparison with the config of a copy, which somebody may
have trained further, converted, moved, or saved by another version of transformers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_LEFT_OUT = frozenset(
    (
        # How the file came to be, and of which numbers.
        *("transformers_version", "architectures", "dtype", "torch_dtype"),
        # What a caller wants besides, and how it is computed.
        *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "output_router_logits"),
        *("chunk_size_feed_forward", "pretraining_tp"),
        # Of a classifier's head.
        *("id2label", "label2id", "num_labels", "problem_type"),
        # Of training alone.
        *("router_aux_loss_coef", "router_z_loss_coef", "router_jitter_noise"),
        # Layers that only draft, which are often not saved.
        *("num_nextn_predict_layers", "mtp_layer_types", "mtp_mlp_layer_types"),
    )
)
"""What does not tell models apart."""
_LEFT_OUT_WITH = ("_token_id", "dropout", "pdrop", "initializer")
"""Nor what has one of these in its name: tokens, of which tokenizers tell, and what is of training alone."""
_TOLD_BY_ROPE = frozenset(("rope_theta", "rope_scaling", "partial_rotary_factor"))
"""Older spellings of what `rope_parameters` tells."""
_TOLD_BY_LAYERS = frozenset(("max_window_layers", "sliding_window_pattern"))
"""Older spellings of what `layer_types` tells."""
_NEVER_SLIDE = frozenset(("full_attention", "linear_attention"))
"""Types of layers that `sliding_window` is nothing to."""
_LAYER_TYPES = {"attention": "full_attention", "mamba": "linear_attention"}
_ROPE_TYPES = {"su": "longrope", "mrope": "default"}
"""By older names."""
_READ_BY_ROPE = {"default": frozenset[str](), "linear": frozenset(("factor",))}
"""What these types of it read beside _ROPE_DEFAULTS and the base; others read all."""
_ROPE_DEFAULTS = {"partial_rotary_factor": 1.0}
_YARN_DEFAULTS = {"beta_fast": 32, "beta_slow": 1, "truncate": True}
_OF_IMAGES = frozenset(("mrope_section", "mrope_interleaved"))
"""Keys of rope that text makes no use of."""
_BY_LENGTH = frozenset(("dynamic", "longrope"))
"""Types of rope for which `max_position_embeddings` is more than a limit, which a copy may have raised."""
_SELDOM_NAMED = ("model_type", "head_dim")
"""Keys that models read whose config's class may not name them."""
_FIRST = ("model_type", "vocab_size")
"""Of what differs these are told first."""


class Difference(NamedTuple):
    name: str
    """As `rope_parameters.factor`, or `layer_types[3]`."""
    own: Any
    other: Any


def identity(config: PreTrainedConfig) -> dict[str, Any]:
    """`identity_of` its text part, as far as its class has the keys: others no model reads."""
    text = config.get_text_config()
    has = {*inspect.signature(type(text).__init__).parameters, *text.attribute_map.values(), *_SELDOM_NAMED}
    found = identity_of(json.loads(text.to_json_string(use_diff=False)))
    return {key: value for key, value in found.items() if key in has}


def identity_of(told: Mapping[str, Any]) -> dict[str, Any]:
    """`told`: the config of a text model as transformers has it, in JSON: with all that its class fills in."""
    layers = [_LAYER_TYPES.get(each, each) for each in told.get("layer_types") or []]
    rope = told.get("rope_parameters")
    left_out = _LEFT_OUT | (_TOLD_BY_LAYERS if layers else frozenset())
    found: dict[str, Any] = {
        key: told[key]
        for key in dict.fromkeys((*_FIRST, *told))
        if key in told
        and key not in left_out
        and not key.startswith("_")
        and not any(each in key for each in _LEFT_OUT_WITH)
    }
    slides = found.pop("use_sliding_window", True) and not (layers and _NEVER_SLIDE.issuperset(layers))
    if "sliding_window" in found and not slides:
        found["sliding_window"] = None
    if layers:
        found["layer_types"] = layers
    heads, width = found.get("num_attention_heads"), found.get("hidden_size")
    if found.get("num_key_value_heads", heads) is None:
        found["num_key_value_heads"] = heads
    if found.get("head_dim", 0) is None and isinstance(heads, int) and isinstance(width, int):
        found["head_dim"] = width // heads
    return found if not isinstance(rope, Mapping) or not rope else _with_rope(found, rope)


def differences(own: Mapping[str, Any], other: Mapping[str, Any]) -> list[Difference]:
    """Between two identities, of keys that both have: another version of transformers may know more or less. What is
    null, false, 0 or empty is equal."""
    return [each for key in own if key in other for each in _between(key, own[key], other[key])]


def _with_rope(found: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """`told`: one of all layers, or one for each type of them."""
    by_layers = {key: _rope(each) for key, each in told.items() if isinstance(each, Mapping)}
    types = {each["rope_type"] for each in by_layers.values() or [_rope(told)]}
    left_out = _TOLD_BY_ROPE | (frozenset() if types & _BY_LENGTH else {"max_position_embeddings"})
    kept = {key: value for key, value in found.items() if key not in left_out}
    return kept | {"rope_parameters": by_layers or _rope(told)}


def _rope(told: Mapping[str, Any]) -> dict[str, Any]:
    kind = told.get("rope_type") or told.get("type") or "default"
    kind = _ROPE_TYPES.get(kind, kind)
    defaults = _ROPE_DEFAULTS | (_YARN_DEFAULTS if kind == "yarn" else {})
    read = _READ_BY_ROPE.get(kind, told.keys()) | _ROPE_DEFAULTS.keys() | {"rope_theta"}
    given = {key: value for key, value in told.items() if key in read - _OF_IMAGES and value is not None}
    given.pop("type", None)
    return {**defaults, **given, "rope_type": kind}


def _between(name: str, own: Any, other: Any) -> Iterator[Difference]:
    if isinstance(own, Mapping) and isinstance(other, Mapping):
        for key in {**own, **other}:
            yield from _between(f"{name}.{key}", own.get(key), other.get(key))
    elif isinstance(own, list) and isinstance(other, list) and len(own) == len(other):
        for place, (one, another) in enumerate(zip(own, other, strict=True)):
            yield from _between(f"{name}[{place}]", one, another)
    elif (own or None) != (other or None):
        yield Difference(name, own, other)
