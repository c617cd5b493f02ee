"""What the tools of a request say of the arguments of their calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from headrace.experience.text.messages import Tool
from headrace.gateway.agents.parsed_text import read_json

_ALTERNATIVES = ("anyOf", "oneOf", "allOf")


def tool_names(tools: Sequence[Tool]) -> Set[str]:
    return {name for name, _ in _named(tools)}


def schema_of(name: str, tools: Sequence[Tool]) -> Any:
    """Of the arguments of the tool of that name; None if there is none."""
    return dict(_named(tools)).get(name)


def _named(tools: Sequence[Tool]) -> Iterator[tuple[str, Any]]:
    for tool in tools:
        inner = tool.get("function", tool)
        yield inner["name"], inner.get("parameters")


def argument_of(text: str, schema: Any, name: str) -> Any:
    """The argument `name` that was written as `text`, without quotes if it is a string: so where `schema` declares a
    string it is that, and where it declares other types too, what is a value of one of those in JSON. Where it declares
    none, what is JSON is taken as JSON."""
    types = _declared(schema, name)
    if types == {"string"}:
        return text
    try:
        value = read_json(text)
    except (ValueError, RecursionError):
        return text
    is_other = not isinstance(value, str) and bool(_types_of(value) & types)
    return text if "string" in types and not is_other else value


def _declared(schema: Any, name: str) -> Set[str]:
    """Types that the argument `name` may have; empty if none is told."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    waiting = [properties.get(name)] if isinstance(properties, Mapping) else []
    met: set[int] = set()
    types: set[str] = set()
    while waiting:
        each = waiting.pop()
        if not isinstance(each, Mapping) or id(each) in met:
            continue
        met.add(id(each))
        types |= _own_types(each)
        waiting += [branch for key in _ALTERNATIVES for branch in _list(each.get(key))]
        if isinstance(each.get("$ref"), str):
            waiting.append(_at(schema, each["$ref"]))
    return types


def _own_types(schema: Mapping[str, Any]) -> Set[str]:
    kind = schema.get("type")
    if kind is not None:
        return {each for each in (kind, *_list(kind)) if isinstance(each, str)}
    values = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    return {name for value in values for name in _types_of(value)}


def _at(schema: Any, reference: str) -> Any:
    """What a reference within `schema` is to, as `#/$defs/Mode`; None if there is nothing."""
    root, *path = reference.split("/")
    found = schema if root == "#" else None
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _types_of(value: Any) -> Set[str]:
    """As JSON schemas name them."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
        case _:
            return {"object"}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
