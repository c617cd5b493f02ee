"""The files of a model's folder that decide what is loaded from it: those of a node's are to be the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.config import ConfigError
from headrace.models.weight_files import weight_files

CONFIG = "config.json"
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "tekken.json",
    "chat_template.jinja",
)
"""What transformers takes of a folder, if it is there."""
_MORE_OF_TOKENIZER = ("tokenizer*.json", "*.model", "*.jinja", "additional_chat_templates/*.jinja")
_BESIDE_WEIGHTS = ("generation_config.json", "model.safetensors.index.json", "adapter_config.json")
_WEIGHTS = ("model.safetensors", "adapter_model.safetensors")
"""Taken before those that an index names, and by PEFT, where it is installed, on top of them."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    whole: tuple[Path, ...]
    """Small ones, of which each byte counts."""
    weights: tuple[Path, ...]
    absent: tuple[Path, ...]
    """Those that are not there, and would be read if they were."""


def model_files(folder: Path, *, weights: bool) -> ModelFiles:
    """`weights`: else what its tokenizer is loaded from."""
    names = [CONFIG, *_TOKENIZER, *(_BESIDE_WEIGHTS if weights else ())]
    large = [folder / name for name in _WEIGHTS] if weights else []
    asked = [folder / name for name in names]
    more = [path for pattern in _MORE_OF_TOKENIZER for path in sorted(folder.glob(pattern)) if path.is_file()]
    there = [path for path in large if path.is_file()]
    return ModelFiles(
        tuple(dict.fromkeys([*(path for path in asked if path.is_file()), *more])),
        tuple(dict.fromkeys([*(_loaded(folder) if weights else ()), *there])),
        tuple(path for path in [*asked, *large] if not path.is_file()),
    )


def _loaded(folder: Path) -> tuple[Path, ...]:
    try:
        return tuple(weight_files(folder))
    except ConfigError:  # whoever loads it says so
        return ()
