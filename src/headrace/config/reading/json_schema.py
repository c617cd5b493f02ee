"""JSON Schema of the configs, for editors."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from headrace.config.base import Section
from headrace.config.field_docs import field_docs
from headrace.config.kinds import KINDS

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(command: str) -> dict[str, Any]:
    """Of the config of `headrace COMMAND`, one of `KINDS`: its keys as they are in YAML, with bounds, defaults and what
    docs/configuration.md says of them."""
    schema = KINDS[command].model_json_schema(by_alias=True, mode="validation", schema_generator=_Documented)
    engine = schema["properties"].get("engine")
    if engine is not None and "EngineSection" in schema["$defs"]:
        schema["properties"]["engine"] = {**_without_ref(engine), "anyOf": [_ref(engine), _sections(engine)]}
    return {"$schema": DIALECT, **schema, "title": f"headrace {command}"}


class _Documented(GenerateJsonSchema):
    """With the string under each field."""

    def model_schema(self, schema: core_schema.ModelSchema) -> dict[str, Any]:
        made = super().model_schema(schema)
        section: type[Section] = schema["cls"]
        for name, text in field_docs(section).items():
            made["properties"][section.model_fields[name].alias or name].setdefault("description", text)
        return made


def _sections(engine: dict[str, Any]) -> dict[str, Any]:
    """A list of them, of which the first has what holds of all."""
    return {
        "type": "array",
        "minItems": 1,
        "prefixItems": [_ref(engine)],
        "items": {"$ref": "#/$defs/EngineSection"},
    }


def _ref(engine: dict[str, Any]) -> dict[str, Any]:
    return {"$ref": engine["$ref"]}


def _without_ref(engine: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in engine.items() if key != "$ref"}
