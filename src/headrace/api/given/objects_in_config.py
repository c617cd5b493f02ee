"""Callables and rows in the place of a text anywhere in a config, or in the arguments that are its keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.api.given.inputs import Inputs
from headrace.config.data import SourceConfig
from headrace.config.errors import ConfigError

_REWARDS = re.compile(r"(evaluation\.sets\.[^.]+\.)?reward\.(function|group|terms(\[\d+\]|\.\d+)\.function)")
_WHOLE_REWARDS = re.compile(r"(evaluation\.sets\.[^.]+\.)?reward")
_FILTERS = re.compile(r"rollout\.filters(\[\d+\]|\.\d+)(\.function)?")
_ROWS = re.compile(r"(data\.(train|eval)|evaluation\.sets\.[^.]+\.data)(\.path)?")
_TAKE_FUNCTIONS = (
    "reward.function, reward.terms, reward.group, rollout.filters, rollout.workflow, rollout.agent, rollout.environment"
)
_PLAIN = (str, bytes, int, float, Path, type(None))


def named(config: Any, inputs: Inputs) -> Any:
    """`config`, a mapping by keys or dotted keys, with the text of `inputs` for each callable and all rows in it; what
    is no mapping stays. Raises ConfigError, which names the key, for one that has no place there."""
    if not isinstance(config, Mapping):
        return config
    try:
        return _named(config, inputs, "")
    except RecursionError as error:
        raise ConfigError("the config is nested too deeply, or holds itself; give a plain mapping") from error


def _named(value: Any, inputs: Inputs, key: str) -> Any:
    """Of what stands at `key`."""
    if isinstance(value, _PLAIN) or type(value).__module__.startswith("omegaconf"):
        return value
    if callable(value):
        return _callable(value, inputs, key)
    if _ROWS.fullmatch(key) and not isinstance(value, Mapping) and not _are_sources(value):
        name = "train" if key.startswith("data.train") else "eval"
        return next(iter(inputs.data(value, key, key, name).values()))
    if isinstance(value, Mapping):
        return {name: _named(one, inputs, f"{key}.{name}" if key else str(name)) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_named(one, inputs, f"{key}[{place}]") for place, one in enumerate(value)]
    if _is_many(value):
        raise ConfigError(
            f"{key} is of type {type(value).__name__}, which a config has no form for; give text, a number, a list or "
            "a mapping"
        )
    return value


def several(eval_data: Any, inputs: Inputs) -> dict[str, Any]:
    """The keys of the config for held-out rows; or for a mapping of these by the name of their set, where `eval` is
    the set of `data.eval`. Raises ConfigError."""
    if not isinstance(eval_data, Mapping):
        return inputs.data(eval_data, "eval_data", "data.eval", "eval")
    if not eval_data:
        raise ConfigError("eval_data is an empty mapping; give rows, or rows by the name of their set")
    if "path" in eval_data and set(eval_data) <= set(SourceConfig.model_fields):
        raise ConfigError("eval_data is a mapping with path; give the options of a source as data__eval={...}")
    keys: dict[str, Any] = {}
    for name, rows in eval_data.items():
        _check_set(name)
        argument = f"eval_data[{name!r}]"
        if rows is None:
            raise ConfigError(f"{argument} is None; give rows, or leave it out")
        keys |= inputs.data(rows, argument, "data.eval" if name == "eval" else f"evaluation.sets.{name}.data", "eval")
    return keys


def _check_set(name: object) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,39}", name):
        raise ConfigError(
            f"eval_data has a set called {name!r}; begin with a letter, and use letters, digits, _ and - (40 at most)"
        )


def _callable(value: Any, inputs: Inputs, key: str) -> Any:
    if _WHOLE_REWARDS.fullmatch(key):
        return {"function": inputs.function(value, key, "reward")}
    if _REWARDS.fullmatch(key):
        return inputs.function(value, key, "reward")
    if _FILTERS.fullmatch(key):
        return inputs.function(value, key, "filter")
    if key == "rollout.filters":
        return inputs.filters(value)[key]
    if key == "rollout.workflow":
        return inputs.workflow(value)[key]
    if key == "rollout.agent":
        return inputs.function(value, key, "agent")
    if key == "rollout.environment":
        return inputs.environment(value)[key]
    called = getattr(value, "__name__", type(value).__name__)
    raise ConfigError(
        f"{key} is the function {called}, and functions are taken at {_TAKE_FUNCTIONS} alone; give its text, for one "
        "that a file defines path.py:name"
    )


def _are_sources(value: Any) -> bool:
    """Whether it is a list of paths and mappings with `path`, not of rows."""
    return isinstance(value, list | tuple) and any(
        isinstance(one, str | Path) or (isinstance(one, Mapping) and "path" in one) for one in value
    )


def _is_many(value: Any) -> bool:
    """Frames, datasets, generators: not arrays, of which one number may be meant."""
    return isinstance(value, Iterable) and not callable(getattr(value, "tolist", None))
