"""From a YAML file and dotted overrides to a validated config."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from headrace.config.base import Section
from headrace.config.errors import ConfigError
from headrace.config.explain import explain

C = TypeVar("C", bound=Section)

_ENGINE_SIZES = {"max_concurrent_sequences", "kv_cache_gib", "prefill_tokens_per_step"}
_JUDGE: dict[str, Any] = {"timeout_s": True, "engine": _ENGINE_SIZES}
_OPERATIONAL: dict[str, Any] = {
    "runtime": True,
    "checkpoint": True,
    "weights": True,
    "evaluation": True,
    "engine": _ENGINE_SIZES,
    "reward": {"timeout_s": True, "workers": True, "judge": _JUDGE, "terms": {"__all__": {"judge": _JUDGE}}},
    "rollout": {"max_drops_per_batch"},
}
"""Keys that a resumed run may change."""


def load_config(kind: type[C], path: str | Path, overrides: Sequence[str] = ()) -> C:
    """Read, merge and validate. Relative paths in the file stay as written: they are relative to the caller.

    Raises ConfigError naming the key, the value and the mend.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"no config file at {file}")
    for override in overrides:
        if "=" not in override:
            raise ConfigError(f"override {override!r} has no '='; write key=value, as trainer.optimizer.lr=1e-6")
    try:
        loaded = OmegaConf.load(file)
        if not isinstance(loaded, DictConfig):
            raise ConfigError(f"{file} holds no mapping; a config is a mapping of sections, as model, data and trainer")
        merged = OmegaConf.merge(loaded, OmegaConf.from_dotlist(list(overrides)))
        raw = OmegaConf.to_container(merged, resolve=True)
    except ConfigError:
        raise
    except (OmegaConfBaseException, ValueError, OSError) as error:
        raise ConfigError(f"{file}: {error}") from error
    except Exception as error:  # a YAML parser's errors share no base with OmegaConf's
        if type(error).__module__.partition(".")[0] != "yaml":
            raise
        raise ConfigError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from error
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(explain(kind, error, str(file))) from error


def dump_config(config: Section) -> str:
    """The whole config as YAML, defaults included; `load_config` reads it back to an equal one."""
    return OmegaConf.to_yaml(OmegaConf.create(config.model_dump(mode="json", by_alias=True)))


def config_sha256(config: Section) -> str:
    """Hex digest of what decides a run's result: configs that differ only in where and how fast they run (`runtime`,
    `checkpoint`, `weights`, `evaluation`, sizes of engines, processes and time limits of rewards), or in when they give
    up, have equal digests."""
    values = config.model_dump(mode="json", by_alias=True, exclude=_OPERATIONAL)
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
