"""Whether a server has the run's model, by the configs of both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.config.errors import ConfigError
from headrace.engines.servers.dialect import Expected
from headrace.models.config_identity import differences, identity

_NAMED, _LONGEST = 3, 40
"""Differences that are told, and characters of a value."""
_RENAMED = frozenset(
    ("mistral", "pixtral", "whixtral", "deepseek_v3", "deepseek-ocr", "longcat_flash", "mamba", "transformer")
)
"""Model types by which SGLang calls models that call themselves otherwise."""


def require_same_model(there: Mapping[str, Any], expected: Expected, where: str) -> None:
    """`there`: its identity (`models/config_identity.py`), or what is known of it. `where`: its name and address.
    Raises ConfigError that names what differs."""
    found = differences(expected.model, there)
    if not found:
        return
    words = [
        f"its {each.name} is {_short(each.other)}, and that of model.path {_short(each.own)}" for each in found[:_NAMED]
    ]
    if len(found) > _NAMED:
        words.append(f"{len(found) - _NAMED} more differ")
    raise ConfigError(f"{where} has another model: {'; '.join(words)}; start it with the run's model")


def require_kind(kind: str | None, expected: Expected, where: str) -> None:
    """`kind`: the model type that an SGLang server tells, of the whole model or of its text part; None for one that
    tells none. Raises ConfigError."""
    own = (expected.model_type, expected.model.get("model_type"))
    if kind and kind not in own and kind not in _RENAMED and any(own):
        raise ConfigError(
            f"{where} has another model: its model_type is {kind!r}, and that of model.path {own[0] or own[1]!r}; "
            "start it with the run's model"
        )


def identity_in(folder: str, changes: str) -> dict[str, Any]:
    """Of the model in it, with the `changes`, a JSON object, that a server makes to its config; empty where there is
    none that can be read here. Imports transformers, which takes seconds and 200 MB of memory."""
    if not (Path(folder) / "config.json").is_file():
        return {}
    from headrace.models.loading import read_model_config

    with suppress(Exception):  # of any kind: transformers takes for granted that what it is given is right
        config = read_model_config(folder)
        for key, value in json.loads(changes).items():
            name = "rope_parameters" if key == "rope_scaling" else key
            own = getattr(config, name, None)
            config.update({name: {**own, **value} if isinstance(own, dict) and isinstance(value, dict) else value})
        return identity(config)
    return {}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
