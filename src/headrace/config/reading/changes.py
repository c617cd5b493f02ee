"""What differs between the config that a run was made with and the present one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from headrace.config.reading.config_text import values_of
from headrace.config.reading.load import decisive
from headrace.config.train import TrainConfig

_MOST_TOLD = 20
_MOST_SHOWN = 120
"""Characters of a value."""
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Change:
    key: str
    """Dotted; of a value or of a list, never of a section that both have."""
    was: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.key}: was {_shown(self.was)}, now {_shown(self.now)}"


def changes(before: str, now: str) -> list[Change] | None:
    """Each key that differs. Both are as `dump_config` makes them; None if one is no such text, as when its file was
    damaged. What a config of `headrace train` did not have yet counts as not given."""
    if before == now:
        return []
    old, new = _read(before), _read(now)
    if old is None or new is None:
        return None
    return [Change(key, was, is_) for key, was, is_ in _differences(old, new, "")]


def describe_changes(before: str, now: str) -> str:
    """A line for each key that decides a run's result and differs, with both values, each line after a line break.

    As `changes`; nothing if one of them is no text of a config.
    """
    old, new = _read(before), _read(now)
    if old is None or new is None:
        return ""
    return listed(str(Change(*found)) for found in _differences(decisive(old), decisive(new), ""))


def listed(lines: Iterable[str]) -> str:
    """Each after a line break; the first of many."""
    shown = [f"\n  - {line}" for line in lines]
    if len(shown) > _MOST_TOLD:
        shown[_MOST_TOLD:] = [f"\n  - and {len(shown) - _MOST_TOLD} more"]
    return "".join(shown)


def _read(text: str) -> dict[str, Any] | None:
    try:
        values = values_of(text)
    except yaml.YAMLError:
        return None
    if not isinstance(values, dict):
        return None
    try:
        return TrainConfig.model_validate(values).model_dump(mode="json", by_alias=True)
    except ValidationError:
        return values


def _differences(old: Any, new: Any, key: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys([*new, *old]):
            below = f"{key}.{name}" if key else str(name)
            yield from _differences(old.get(name, _ABSENT), new.get(name, _ABSENT), below)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(one, other, f"{key}.{place}")
    elif old != new:
        yield key, old, new


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "not there"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
