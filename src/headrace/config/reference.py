"""The reference of every config key, from the models and the strings under their fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from headrace.config.base import Section


def render_reference(title: str, kind: type[Section]) -> str:
    """Markdown: one table for each section."""
    lines = [f"## {title}", ""]
    for prefix, section in _sections(kind):
        lines += [f"### `{prefix}`" if prefix else "### top level", ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        for name, field in section.model_fields.items():
            if _section_of(field) is None:
                key = field.alias or name
                meaning = " ".join((field.description or "").split())
                lines.append(
                    f"| `{key}` | {_type(field)} | {_default(field)} | {meaning.replace('|', chr(92) + '|')} |"
                )
        lines.append("")
    return "\n".join(lines)


def _sections(kind: type[Section], prefix: str = "") -> Iterator[tuple[str, type[Section]]]:
    if any(_section_of(field) is None for field in kind.model_fields.values()):
        yield prefix, kind
    for name, field in kind.model_fields.items():
        inner = _section_of(field)
        if inner is not None:
            key = field.alias or name
            yield from _sections(inner, f"{prefix}.{key}" if prefix else key)


def _section_of(field: FieldInfo) -> type[Section] | None:
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def _type(field: FieldInfo) -> str:
    return _name(field.annotation) + _bounds(field)


def _bounds(field: FieldInfo) -> str:
    bounds = []
    for rule in field.metadata:
        for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
            if isinstance(rule, getattr(annotated_types, name.capitalize())):
                bounds.append(f"{sign} {getattr(rule, name)}")
    return f" ({', '.join(bounds)})" if bounds else ""


def _name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_name(part) for part in arguments if part is not type(None))
    if origin is Annotated:
        field = FieldInfo.from_annotation(annotation)
        return _name(field.annotation) + _bounds(field)
    if origin is tuple:
        return f"list of {_name(arguments[0])}"
    return {int: "integer", float: "number", str: "text", bool: "true, false"}.get(annotation, str(annotation))


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    return "" if field.default is None else f"`{json.dumps(field.default)}`"
