"""What a model's config.json must say, beyond what transformers itself looks at."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.config import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_MOST_LAYERS = 10_000


def read_object(file: Path) -> dict[str, Any]:
    """What `file` holds. Raises ConfigError unless it is a JSON object."""
    try:
        value = json.loads(file.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0][:120]
        raise ConfigError(f"{str(file)!r} is no JSON: {reason}; copy it again, or save the model again") from error
    if not isinstance(value, dict):
        raise ConfigError(
            f"{str(file)!r} holds a {type(value).__name__}, and must hold a JSON object; copy it again, or save the "
            "model again"
        )
    return value


def check_layers(path: str, raw: dict[str, Any]) -> None:
    """Raises ConfigError for more layers than any model has: transformers would make a list of them for hours."""
    for key, value in _leaves(raw):
        if key.rpartition(".")[2] in _LAYERS and isinstance(value, int) and value > _MOST_LAYERS:
            raise _wrong(path, key, value, f"it must be {_MOST_LAYERS} or less")


def key_of(config: PreTrainedConfig, value: Any) -> str | None:
    """The key that has this value, also in a section."""
    return next((key for key, found in _leaves(config.to_dict()) if found == value), None)


def check_config(path: str, config: PreTrainedConfig) -> None:
    """Raises ConfigError, naming the key, for sizes that no model has, NaN, quantised weights, or stop tokens that are
    none."""
    text = config.get_text_config()
    for key in _SIZES:
        for value in _each(getattr(text, key, None)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise _wrong(path, key, value, "it must be a whole number above 0")
    heads, shared = getattr(text, "num_attention_heads", None), getattr(text, "num_key_value_heads", None)
    if isinstance(heads, int) and isinstance(shared, int) and heads % shared:
        raise _wrong(path, "num_key_value_heads", shared, f"it must divide num_attention_heads, {heads}")
    for key, value in _leaves(config.to_dict()):
        if isinstance(value, float) and math.isnan(value):
            raise _wrong(path, key, value, "it must be a number")
    if quantised := getattr(config, "quantization_config", None):
        method = quantised.get("quant_method") if isinstance(quantised, dict) else type(quantised).__name__
        raise ConfigError(
            f"model {path!r} is quantised ({method}), which cannot be trained or served here; give the model as it was "
            "before"
        )
    check_stops(path, "config.json", getattr(text, "eos_token_id", None), getattr(text, "vocab_size", None))


def check_stops(path: str, where: str, stops: Any, vocab_size: int | None) -> None:
    """Raises ConfigError for an `eos_token_id` of `where` that is no token, nor a list of tokens."""
    for stop in _each(stops):
        is_id = isinstance(stop, int) and not isinstance(stop, bool)
        if not is_id or not 0 <= stop < (vocab_size or math.inf):
            wanted = "a token id" if vocab_size is None else f"a token id, from 0 to {vocab_size - 1}"
            raise _wrong(path, "eos_token_id", stop, f"it must be {wanted}, or a list of such", where)


def _each(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of all that is no section and no list."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, key)
    else:
        yield key, value


def _wrong(path: str, key: str, value: Any, wanted: str, where: str = "config.json") -> ConfigError:
    return ConfigError(f"{where} of model {path!r}: {key} is {value!r}; {wanted}")
