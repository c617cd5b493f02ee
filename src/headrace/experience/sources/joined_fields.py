"""Structs of a table, each of which has the fields of all rows', null where its own row has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OF_A_FUNCTION = ("parameters", "input_schema", "arguments")


def without_joined(value: Any, *, in_chat: bool = False) -> Any:
    """`value`, of a table, as JSON values, without the null fields of messages, tools and calls, however deep: a chat
    template would show each tool with the parameters of all. `in_chat`: it is part of one of these."""
    if isinstance(value, list):
        return [without_joined(part, in_chat=in_chat) for part in value]
    if not isinstance(value, dict):
        return value
    in_chat = in_chat or _is_of_a_chat(value)
    return {
        name: without_joined(part, in_chat=in_chat) for name, part in value.items() if part is not None or not in_chat
    }


def _is_of_a_chat(value: Mapping[str, Any]) -> bool:
    if value.get("role") is not None:
        return True
    if isinstance(function := value.get("function"), Mapping):
        return isinstance(function.get("name"), str)
    return isinstance(value.get("name"), str) and any(name in value for name in _OF_A_FUNCTION)
