"""Values that are either a name of ours or the place of a function of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema


def is_own(value: str) -> bool:
    """Whether `value` is the place of a function, as `path.py:function`."""
    return ":" in value


@dataclass(frozen=True, slots=True)
class NameOrOwn:
    """To annotate a text with: one of `known`, or `path.py:function`."""

    known: tuple[str, ...]

    def check(self, value: str) -> str:
        """Raises ValueError."""
        if value not in self.known and not is_own(value):
            names = f"{', '.join(self.known)}, or a" if self.known else "a"
            raise ValueError(f"{value!r} is not known; use {names} function of yours: path.py:function")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Editors complete the names."""
        own = {"type": "string", "pattern": ":", "description": "path.py:function"}
        return {"anyOf": [{"enum": list(self.known)}, own]} if self.known else own


def tag_of(value: object) -> str | None:
    """Of a value that is a name or a section with a `type`: which one it is, for pydantic to tell them apart."""
    if isinstance(value, str):
        return "name"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if isinstance(kind, str) else None


def one_of(*known: str) -> NameOrOwn:
    """To annotate a field with: `known`, or `path.py:function`."""
    return NameOrOwn(known)
