"""Another trainer's settings as keys of ours: by what the setting means where counts or values differ, else by name."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from headrace.config import ConfigError, TrainConfig, load_config
from headrace.config.reading.explain import known_keys
from headrace.config.reading.synonyms import meant_by

_BEGUN = {"model": {"path": "model"}, "data": {"train": "train.jsonl"}}
_OTHERS = ("critic.", "reference.", "proximal.", "teacher.", "reward.", "evaluation.")
"""Sections whose keys have the names of others, which are meant as a rule."""
_PATHS = ("model.path", "data.train", "data.eval", "reward.model.path")
_LONGEST = 1000
"""Characters of a path; a file system takes no more than some."""
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
"""What YAML's readers take for text, unless it has a point."""


class Unknown(Exception):
    """Why a setting is not translated."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a value that the file does not tell."""

    why: str


Settings = Mapping[str, Any]
"""By dotted name."""
Rule = Callable[[Any, Settings], Mapping[str, Any]]
"""Given a value and all settings: values by key of ours; none where ours is that without a key. Raises Unknown."""


Defaults = Callable[[Settings], Settings]
"""Given all settings: those that are not set, and are there something else than here unless they are."""


@dataclass(frozen=True, slots=True)
class Told:
    name: str
    words: str


@dataclass(slots=True)
class Translation:
    values: dict[str, Any] = field(default_factory=dict)
    """By dotted key."""
    done: list[Told] = field(default_factory=list)
    left: list[Told] = field(default_factory=list)
    assumed: list[Told] = field(default_factory=list)
    """Settings that the file leaves at the other trainer's defaults."""


def translate(settings: Settings, rules: Mapping[str, Rule], defaults: Defaults = lambda settings: {}) -> Translation:
    """`rules`: by the end of a dotted name; the longest counts. A setting that is None is not set."""
    translation, known = Translation(), list(known_keys(TrainConfig))
    for name, value in settings.items():
        if value is None:
            continue
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = float(value)
        try:
            if isinstance(value, Unreadable):
                raise Unknown(value.why)
            found = {key: _here(key, one) for key, one in _found(name, value, settings, rules, known).items()}
            _check(found)
        except Unknown as error:
            translation.left.append(Told(name, str(error)))
            continue
        except (TypeError, ValueError, AttributeError, ArithmeticError):
            translation.left.append(Told(name, f"{reprlib.repr(value)} is not what it takes there"))
            continue
        translation.values |= found
        words = ", ".join(f"{key}: {one!r}" for key, one in found.items())
        translation.done.append(Told(name, words or "is so here without a key"))
    _assume(translation, settings, rules, known, defaults(settings))
    _gather(translation, "data.train")
    return translation


def _assume(
    translation: Translation, settings: Settings, rules: Mapping[str, Rule], known: Sequence[str], defaults: Settings
) -> None:
    """What `defaults` come to, at keys that no setting was translated to."""
    for name, value in defaults.items():
        if settings.get(name) is not None:
            continue
        try:
            found = _found(name, value, settings, rules, known)
        except Unknown as error:
            translation.left.append(Told(name, f"it is {value!r} unless given: {error}"))
            continue
        if new := {key: one for key, one in found.items() if key not in translation.values}:
            translation.values |= new
            translation.assumed.append(Told(name, ", ".join(f"{key}: {one!r}" for key, one in new.items())))


def _gather(translation: Translation, key: str) -> None:
    """A path that has options beside it becomes one of them; options without a path are of nothing."""
    values = translation.values
    options = [name for name in values if name.startswith(f"{key}.")]
    if options and isinstance(values.get(key), str):
        values[f"{key}.path"] = values.pop(key)
    if f"{key}.path" in values:
        return
    for name in options:
        del values[name]
        for told in [one for one in translation.done if one.words.startswith(f"{name}: ")]:
            translation.done.remove(told)
            translation.left.append(Told(told.name, f"{name} is of one data set, and {key} names none"))


def _here(key: str, value: Any) -> Any:
    """A relative path that leads somewhere from this folder, from everywhere: the config is used in another one."""
    if key not in _PATHS and not key.startswith("evaluation.sets."):
        return value
    if isinstance(value, list):
        return [_here(key, one) for one in value]
    if isinstance(value, Mapping) and "path" in value:
        return {**value, "path": _here(key, value["path"])}
    if not isinstance(value, str) or not value or "\0" in value or len(value) > _LONGEST or not Path(value).exists():
        return value
    return str(Path(value).absolute())


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as sections."""
    whole: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        place = whole
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return whole


def _found(
    name: str, value: Any, settings: Settings, rules: Mapping[str, Rule], known: Sequence[str]
) -> Mapping[str, Any]:
    parts = name.split(".")
    for start in range(len(parts)):
        if (rule := rules.get(".".join(parts[start:]))) is not None:
            return rule(value, settings)
    return {_key(parts, known): value}


def _key(parts: Sequence[str], known: Sequence[str]) -> str:
    """The one key that others call so, or that has the same name here."""
    usual = [key for key in known if not key.startswith(_OTHERS)]
    of_section = [key for key in known if key.startswith(f"{parts[0]}.")] if parts[0] == "critic" else usual
    leaf = parts[-1]
    alike = _nearest([key for key in of_section if key.rpartition(".")[2] == leaf and "." in key], parts)
    found = list(meant_by(parts, known, least=2) or alike or meant_by([leaf], of_section) or meant_by([leaf], known))
    if not found and leaf in ("seed", "track"):
        found = [leaf]
    if not found:
        raise Unknown("nothing here is called so")
    if len(found) > 1:
        raise Unknown(f"it may be {' or '.join(found)}")
    return found[0]


def _nearest(keys: Sequence[str], parts: Sequence[str]) -> list[str]:
    """Those whose ends have the most parts in common with `parts`, as model.path with actor.model.path."""

    def shared(key: str) -> int:
        pairs = zip(reversed(key.split(".")), reversed(parts), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    most = max(map(shared, keys), default=0)
    return [key for key in keys if shared(key) == most]


def _check(found: Mapping[str, Any]) -> None:
    """Raises Unknown for a value that its key does not take."""
    for key, value in found.items():
        try:
            load_config(TrainConfig, _BEGUN, {key: value})
        except ConfigError as error:
            if f"{key} is" in str(error) or f"{key}:" in str(error):  # else it only needs another key beside it
                raise Unknown(str(error).partition(": ")[2].splitlines()[0]) from error


def same(key: str) -> Rule:
    return lambda value, settings: {key: value}


def one_of(key: str, names: Mapping[Any, Any]) -> Rule:
    """`names`: what ours is for each value of theirs."""

    def rule(value: Any, settings: Settings) -> Mapping[str, Any]:
        if value not in names:
            raise Unknown(f"there is no {value!r} here")
        return {key: names[value]}

    return rule


def never(why: str) -> Rule:
    def rule(value: Any, settings: Settings) -> Mapping[str, Any]:
        raise Unknown(why)

    return rule


def unless(missing: Any, then: Rule, why: str = "") -> Rule:
    """`missing`: the value that stands for none; it says nothing, or `why`."""

    def rule(value: Any, settings: Settings) -> Mapping[str, Any]:
        if value != missing or isinstance(value, bool) != isinstance(missing, bool):
            return then(value, settings)
        if why:
            raise Unknown(why)
        return {}

    return rule


def whole(number: float, what: str) -> int:
    """Raises Unknown unless it is a whole number above 0."""
    if number < 1 or number != int(number):
        raise Unknown(f"{what} would be {number:g}, which is no whole number")
    return int(number)


def trackers(value: Any, settings: Settings) -> Mapping[str, Any]:
    """Names of trackers, less those that stand for what a run always does."""
    names = [value] if isinstance(value, str) else list(value)
    ours = [name for name in names if name in ("tensorboard", "wandb", "mlflow", "trackio", "csv")]
    if other := [name for name in names if name not in (*ours, "console", "none", "file")]:
        raise Unknown(f"there is no tracker {', '.join(map(str, other))} here; track takes tensorboard, wandb, ...")
    return {"track": ours} if ours else {}


EMBEDDED = never("the engine is the embedded one, in the run's process")
ONE_DEVICE = never("a run is on one device")
CUT = never("prompts are cut on the left alone: data.too_long: truncate_left, or drop")
IN_TOKENS = never("micro-batches are counted in tokens: trainer.max_tokens_per_microbatch")
FOLDER = never("the folder is an option: headrace train --dir")
