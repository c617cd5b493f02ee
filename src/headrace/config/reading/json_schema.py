"""JSON Schema of the configs, for editors."""

from __future__ import annotations

from typing import Any

from headrace.config.kinds import KINDS

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(command: str) -> dict[str, Any]:
    """Of the config of `headrace COMMAND`, one of `KINDS`: its keys as they are in YAML, with bounds, defaults and what
    docs/configuration.md says of them."""
    schema = KINDS[command].model_json_schema(by_alias=True, mode="validation")
    return {"$schema": DIALECT, **schema, "title": f"headrace {command}"}
