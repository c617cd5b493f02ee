"""The reference of every config key, from the models and the strings under their fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from headrace.config.algorithm import AlgorithmConfig
from headrace.config.base import Section
from headrace.config.data import SourceConfig
from headrace.config.field_docs import field_docs
from headrace.config.reading.unused_keys import unread
from headrace.config.recipe_defaults import RECIPE_DEFAULTS


def render_reference(title: str, kind: type[Section]) -> str:
    """Markdown: one table for each section."""
    lines = [f"## {title}", ""]
    for prefix, section, defaults in _sections(kind, None):
        lines += [f"### `{prefix}`" if prefix else "### top level", ""]
        if ("type" in section.model_fields or prefix.endswith(".NAME")) and section.__doc__:
            lines += [" ".join(section.__doc__.split()), ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        docs = field_docs(section)
        for name, field in section.model_fields.items():
            if _section_of(field) is None:
                key = field.alias or name
                meaning = " ".join(docs.get(name, "").split())
                default = _default(field, defaults, name)
                lines.append(f"| `{key}` | {_type(field)} | {default} | {meaning.replace('|', chr(92) + '|')} |")
        lines.append("")
        if section is AlgorithmConfig:
            lines += _recipes()
    return "\n".join(lines)


def _recipes() -> list[str]:
    """A table of what each recipe sets otherwise than the default one, of what counts with it."""
    usual = AlgorithmConfig()
    lines = [f"The defaults above are those of `recipe: {usual.recipe}`. What the others set otherwise:", ""]
    lines += ["| recipe | sets |", "|---|---|"]
    for recipe in RECIPE_DEFAULTS:
        config = AlgorithmConfig.model_validate({"recipe": recipe})
        silent = unread(config) | {"recipe"}
        values = {key: value for key, value in _flat(config).items() if key not in silent}
        changed = [f"`{key}: {_value(value)}`" for key, value in values.items() if value != _flat(usual)[key]]
        if recipe != usual.recipe:
            lines.append(f"| `{recipe}` | {', '.join(changed)} |")
    return [*lines, ""]


def _flat(section: Section, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Section) else {f"{prefix}{name}": value}
    return flat


def _sections(
    kind: type[Section], defaults: Section | None, prefix: str = ""
) -> Iterator[tuple[str, type[Section], Section | None]]:
    """Each with its dotted name, and what it is unless given, if it need not be."""
    if any(_section_of(field) is None for field in kind.model_fields.values()):
        yield prefix, kind, defaults
    for name, field in kind.model_fields.items():
        inner = _section_of(field)
        key = field.alias or name
        path = f"{prefix}.{key}" if prefix else key
        if inner is not None:
            default = field.default if defaults is None else getattr(defaults, name)
            yield from _sections(inner, default if isinstance(default, Section) else None, path)
        for listed in _listed_sections(field):
            yield from _sections(listed, None, f"{path}[]{_variant(listed)}")
        if (named := _named_sections(field)) is not None:
            yield from _sections(named, None, f"{path}.NAME")
        beside_text = _sections_beside_text(field)
        for other in beside_text:
            told_by = f" {next(iter(other.model_fields))}: ..." if len(beside_text) > 1 else ""
            yield from _sections(other, None, f"{path}{told_by}")


def _section_of(field: FieldInfo) -> type[Section] | None:
    """The section that the field holds, if it holds one."""
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def _listed_sections(field: FieldInfo) -> tuple[type[Section], ...]:
    """The sections that may stand in the field's list."""
    whole = field.annotation
    kinds = get_args(whole) if get_origin(whole) in (Union, UnionType) else (whole,)
    listed = next((kind for kind in map(_bare, kinds) if get_origin(kind) is tuple), None)
    if listed is None:
        return ()
    item = _bare(get_args(listed)[0])
    parts = get_args(item) if get_origin(item) in (Union, UnionType) else (item,)
    return tuple(part for part in map(_bare, parts) if _is_section(part))


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _named_sections(field: FieldInfo) -> type[Section] | None:
    """The section that stands under each name, where the field is a mapping of names."""
    arguments = get_args(field.annotation)
    return arguments[1] if get_origin(field.annotation) is dict and _is_section(arguments[1]) else None


def _sections_beside_text(field: FieldInfo) -> list[type[Section]]:
    """The sections that may stand where a text may, unless lists hold them too: then they are described there."""
    parts = [_bare(part) for part in get_args(field.annotation)]
    inner = [_bare(part) for whole in parts for part in get_args(whole)]
    if str not in inner:
        return []
    return [part for part in inner if _is_section(part) and part is not SourceConfig and not _variant(part)]


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _variant(section: type[Section]) -> str:
    """As ` type: length`, for one of several kinds of section."""
    return f" type: {get_args(section.model_fields['type'].annotation)[0]}" if "type" in section.model_fields else ""


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
        return " or ".join(dict.fromkeys(_name(part) for part in arguments if part is not type(None)))
    if origin is Annotated:
        field = FieldInfo.from_annotation(annotation)
        return _name(field.annotation) + _bounds(field)
    if origin is tuple:
        return f"list of {_name(arguments[0])}"
    if origin is dict or _is_section(annotation):
        return "mapping"
    return {int: "integer", float: "number", str: "text", bool: "true, false"}.get(annotation, str(annotation))


def _default(field: FieldInfo, defaults: Section | None, name: str) -> str:
    default = field.default if defaults is None else getattr(defaults, name)
    if default is PydanticUndefined:
        return "required"
    return "" if default is None else f"`{_value(default)}`"


def _value(value: Any) -> str:
    return json.dumps(value)
