"""What differs between the config that a run was made with and the present one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from headrace.config.load import decisive

_MOST_TOLD = 20
_MOST_SHOWN = 120
"""Characters of a value."""
_ABSENT = object()


def describe_changes(before: str, now: str) -> str:
    """A line for each key that decides a run's result and differs, with both values, each line after a line break.

    Both are as `dump_config` makes them. Nothing if one is no such text, as when its file was damaged.
    """
    try:
        old, new = yaml.safe_load(before), yaml.safe_load(now)
    except yaml.YAMLError:
        return ""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return ""
    lines = [
        f"\n  - {key}: was {_shown(was)}, now {_shown(is_)}"
        for key, was, is_ in _differences(decisive(old), decisive(new), "")
    ]
    if len(lines) > _MOST_TOLD:
        lines[_MOST_TOLD:] = [f"\n  - and {len(lines) - _MOST_TOLD} more"]
    return "".join(lines)


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
