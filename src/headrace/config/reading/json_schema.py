"""JSON Schema of the configs, for editors."""

from __future__ import annotations

from typing import Any

from headrace.config.kinds import KINDS

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(command: str) -> dict[str, Any]:
    """Of the config of `headrace COMMAND`, one of `KINDS`: its keys as they are in YAML, with bounds, defaults and what
    docs/configuration.md says of them."""
    schema = KINDS[command].model_json_schema(by_alias=True, mode="validation")
    engine = schema["properties"].get("engine")
    if engine is not None and "EngineSection" in schema["$defs"]:
        schema["properties"]["engine"] = {**_without_ref(engine), "anyOf": [_ref(engine), _sections(engine)]}
    return {"$schema": DIALECT, **schema, "title": f"headrace {command}"}


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
