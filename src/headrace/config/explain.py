"""Validation errors in words: the key, the value given, and the mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headrace.config.base import Section


def explain(kind: type[Section], error: ValidationError, source: str) -> str:
    """One line for each fault, headed by the file."""
    lines = [_explain_one(kind, detail) for detail in error.errors()]
    head = f"{source}: {lines[0]}" if len(lines) == 1 else f"{source}: {len(lines)} faults"
    return head if len(lines) == 1 else "\n  - ".join([head, *lines])


def _explain_one(kind: type[Section], detail: ErrorDetails) -> str:
    location = [str(part) for part in detail["loc"]]
    key = ".".join(location) or "config"
    match detail["type"]:
        case "extra_forbidden":
            return f"unknown key {key}{_suggestion(kind, location)}"
        case "missing" if isinstance(detail["loc"][-1], int):
            values = ".".join(location[:-1])
            return f"{values} is {detail['input']!r}: too few values; it needs at least {detail['loc'][-1] + 1}"
        case "missing":
            return f"missing key {key}: it has no default"
        case "value_error":
            message = detail["msg"].removeprefix("Value error, ")
            return message if key == "config" else f"{key}: {message}"
        case _:
            return f"{key} is {detail['input']!r}: {detail['msg'][0].lower()}{detail['msg'][1:]}"


def _suggestion(kind: type[Section], location: list[str]) -> str:
    """Where the key was meant to go: same name elsewhere first, then the nearest spelling."""
    known = list(_keys(kind))
    name, parent = location[-1], [part for part in location[:-1] if not part.isdigit()]
    moved = [key for key in known if key.rsplit(".", 1)[-1] == name]
    if moved:
        return f"; did you mean {' or '.join(moved[:3])}?"
    siblings = [key.rsplit(".", 1)[-1] for key in known if key.split(".")[:-1] == parent]
    near = difflib.get_close_matches(name, siblings, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {'.'.join([*parent, near[0]])}?"
    anywhere = difflib.get_close_matches(name, [key.rsplit(".", 1)[-1] for key in known], n=1, cutoff=0.75)
    if anywhere:
        full = next(key for key in known if key.rsplit(".", 1)[-1] == anywhere[0])
        return f"; did you mean {full}?"
    return f"; known keys here are {', '.join(siblings)}" if siblings else ""


def _keys(kind: type[Section], prefix: str = "") -> Iterator[str]:
    for name, info in kind.model_fields.items():
        key = prefix + (info.alias or name)
        yield key
        for part in (info.annotation, *get_args(info.annotation)):
            if isinstance(part, type) and issubclass(part, Section):
                yield from _keys(part, key + ".")
