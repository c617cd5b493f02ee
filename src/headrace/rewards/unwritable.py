"""Samples that cannot be written as JSON, which is how whoever scores is told of them."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from headrace.rewards.styles import Asked

CANNOT_WRITE = (TypeError, ValueError, RecursionError)
"""What `json.dumps` raises of a value."""
_OF_A_SAMPLE = tuple(field.name for field in fields(Asked))
_OF_A_GROUP = ("responses", "row", "prompt", "rewards", "messages")


def named(arguments: list[Any]) -> dict[str, Any]:
    """The arguments of a call about a sample, about a list of one, or about a group, by their names."""
    if len(arguments) == 1:
        (arguments,) = arguments
    return dict(zip(_OF_A_SAMPLE if isinstance(arguments[0], str) else _OF_A_GROUP, arguments, strict=False))


def unwritable(told: Mapping[str, Any], error: Exception) -> str:
    """Why `json.dumps` raised `error` of these values: the first that JSON cannot hold, as `row['tags'] is {1} (set)`;
    in the words of the error, where it is no single one."""
    fault = next(_faults(told), None) or str(error) or type(error).__name__
    return f"the sample cannot be written as JSON: {fault}"


def _faults(told: Mapping[str, Any]) -> Iterator[str]:
    """In their order. Each list or mapping is looked into once: it may hold itself."""
    left, seen = [*told.items()][::-1], set[int]()
    while left:
        where, value = left.pop()
        if not isinstance(value, dict | list | tuple):
            if fault := _fault(value):
                yield f"{where} is {fault}"
        elif id(value) not in seen:
            seen.add(id(value))
            inner = [*(value.items() if isinstance(value, dict) else enumerate(value))]
            for key, _ in inner:
                if not (key is None or isinstance(key, str | int | float)):
                    yield f"{where} has the name {_shown(key)}"
            left += [(f"{where}[{reprlib.repr(key)}]", entry) for key, entry in reversed(inner)]


def _fault(value: Any) -> str | None:
    try:
        json.dumps(value)
    except ValueError:
        return "a number of more digits than can be written"
    except TypeError:
        return _shown(value)
    return None


def _shown(value: Any) -> str:
    return f"{reprlib.repr(value)} ({type(value).__name__})"
