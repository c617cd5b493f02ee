"""From a YAML file and dotted overrides to a validated config."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigTypeError, MissingMandatoryValue, OmegaConfBaseException
from pydantic import ValidationError

from headrace.config.base import Section
from headrace.config.errors import ConfigError
from headrace.config.kinds import KINDS
from headrace.config.reading.config_text import in_yaml
from headrace.config.reading.explain import explain
from headrace.config.reading.place_overrides import is_of_places, merge_places
from headrace.config.reading.resume import is_operational, plainest
from headrace.config.values.paths import path_of

C = TypeVar("C", bound=Section)

_MOST_SHOWN = 200
"""Characters of a value that errors repeat."""
_NO_MAPPING = "holds no mapping; a config is a mapping of sections, as model, data and trainer"


def load_config(
    kind: type[C],
    given: str | Path | Mapping[str, Any] | Section,
    overrides: Sequence[str] | Mapping[str, Any] = (),
) -> C:
    """Read, merge and validate. Relative paths stay as written: they are relative to the caller.

    `given`: a YAML file; or what would stand in one, of which only what was set counts. `overrides`: texts, as
    `trainer.optimizer.lr=1e-6`, or values by dotted key, where a mapping is merged into its section. Raises ConfigError
    naming the key, the value and the mend.
    """
    raw, source = merged(given, overrides)
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(explain(kind, error, source) + _another_kind(kind, raw, error)) from error


def merged(
    given: str | Path | Mapping[str, Any] | Section, overrides: Sequence[str] | Mapping[str, Any] = ()
) -> tuple[Any, str]:
    """What `load_config` validates, and what errors call it. Raises ConfigError."""
    config, source = _read(given)
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            with _in_words(f"override {key}={_short(value)}"):
                _set(config, key, value)
    else:
        for override in overrides:
            with _in_words(f"override {override!r}"):
                _override(config, override)
    with _in_words(source):
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True), source


def _read(given: str | Path | Mapping[str, Any] | Section) -> tuple[DictConfig, str]:
    """What is given, before it is validated; and what errors call it."""
    if isinstance(given, str | Path):
        file = path_of(given)
        if not file.is_file():
            raise ConfigError(f"no config file at {file}")
        with _in_words(str(file)):
            config = OmegaConf.load(file)
        if not isinstance(config, DictConfig):
            raise ConfigError(f"{file} {_NO_MAPPING}")
        return config, str(file)
    if isinstance(given, Section):
        return OmegaConf.create(given.model_dump(mode="json", by_alias=True, exclude_unset=True)), "the config"
    if not isinstance(given, Mapping):
        raise ConfigError(f"the config is a {type(given).__name__}; give the path of a YAML file, a dict or a config")
    with _in_words("the config"):
        return OmegaConf.create(_plain(given)), "the config"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _set(config: DictConfig, key: str, value: Any) -> None:
    if not all(key.split(".")):
        raise ConfigError(f"override {key!r} names no key; write it as trainer.optimizer.lr")
    if is_of_places(key):
        given = OmegaConf.create()
        OmegaConf.update(given, key, _plain(value))
        merge_places(config, given)
    else:
        OmegaConf.update(config, key, _plain(value), merge=True)


def _plain(value: Any) -> Any:
    """`value` of YAML's types: paths as text, arrays' numbers as numbers."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Path):
        return str(value)
    return value.item() if callable(getattr(value, "item", None)) else value


def _override(config: DictConfig, override: str) -> None:
    key, equals, _ = override.partition("=")
    if not equals:
        raise ConfigError(f"override {override!r} has no '='; write key=value, as trainer.optimizer.lr=1e-6")
    if not all(key.split(".")):
        raise ConfigError(f"override {override!r} names no key; write key=value, as trainer.optimizer.lr=1e-6")
    whole, place, _ = key.partition("[")
    if place and not isinstance(OmegaConf.select(config, whole), ListConfig):
        raise ConfigError(
            f"override {override!r} is for one place in a list, and the file has no list at {whole or 'its top'}; "
            f"give all of it, as {whole or 'key'}=[...]"
        )
    if is_of_places(key):
        merge_places(config, OmegaConf.from_dotlist([override]))
    else:
        config.merge_with_dotlist([override])


@contextmanager
def _in_words(source: str) -> Iterator[None]:
    """Errors of YAML and OmegaConf as ConfigErrors that name `source`."""
    try:
        yield
    except ConfigError:
        raise
    except RecursionError as error:
        raise ConfigError(f"{source} is nested too deeply for a config") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8 text; give a YAML file") from error
    except MissingMandatoryValue as error:
        raise ConfigError(f"{source}: {error.full_key} is ???, which stands for a value yet to be given") from error
    except ConfigTypeError as error:
        raise ConfigError(
            f"{source} gives a list for a mapping, or the other way round, at {error.full_key}"
        ) from error
    except OmegaConfBaseException as error:
        key = f" (at {error.full_key})" if error.full_key else ""
        raise ConfigError(f"{source}: {str(error).splitlines()[0]}{key}") from error
    except (TypeError, IndexError, AttributeError) as error:  # OmegaConf's own, for what does not fit together
        raise ConfigError(f"{source} does not fit what the file has there: {error}") from error
    except (ValueError, OSError) as error:
        plain = isinstance(error, OSError) and error.errno is None  # OmegaConf's, of a file that is one number
        raise ConfigError(f"{source} {_NO_MAPPING}" if plain else f"{source}: {error}") from error
    except Exception as error:  # a YAML parser's errors share no base with OmegaConf's
        if type(error).__module__.partition(".")[0] != "yaml":
            raise
        raise ConfigError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from error


def _another_kind(kind: type[Section], raw: Any, error: ValidationError) -> str:
    """The commands that would take what this one does not know."""
    if all(detail["type"] != "extra_forbidden" for detail in error.errors()):
        return ""
    fitting = [f"headrace {command}" for command, other in KINDS.items() if other is not kind and _fits(other, raw)]
    return f"\nIt is a config of {' or '.join(fitting)}." if fitting else ""


def _fits(kind: type[Section], raw: Any) -> bool:
    try:
        kind.model_validate(raw)
    except ValidationError:
        return False
    return True


def dump_config(config: Section) -> str:
    """The whole config as YAML, defaults included; `load_config` reads it back to an equal one."""
    return in_yaml(config.model_dump(mode="json", by_alias=True))


def config_sha256(config: Section) -> str:
    """Hex digest of what decides a run's result: configs that differ only in where and how fast they run, in what is
    beside training, or in when they give up, have equal digests; `headrace.config.reading.resume` has the keys."""
    values = decisive(config.model_dump(mode="json", by_alias=True))
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def decisive(values: Any, key: str = "") -> Any:
    """`values`, of a dumped config, less the keys that decide nothing, and of values that decide the same the first.
    `key`: of `values` themselves."""
    if isinstance(values, list):
        return [decisive(value, f"{key}.{place}") for place, value in enumerate(values)]
    if not isinstance(values, Mapping):
        return plainest(key, values)
    below = {name: f"{key}.{name}" if key else str(name) for name in values}
    return {name: decisive(values[name], path) for name, path in below.items() if not is_operational(path)}
