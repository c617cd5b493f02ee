"""A reward for JSON of a given form, by jsonschema (the extra `schema`)."""

from __future__ import annotations

import json
import re
from typing import Any

from jsonschema.validators import validator_for
from referencing import Registry

_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)


def json_schema(response: str, schema: object) -> float:
    """1 if the response is JSON that `schema` (a JSON schema, or its text) allows: all of it, or its last fenced block.

    A reference to another document is an error: nothing is fetched.
    """
    rules = json.loads(schema) if isinstance(schema, str) else schema
    if not isinstance(rules, dict):
        raise TypeError(f"the answer {schema!r} is no JSON schema; give an object")
    kind = validator_for(rules)
    kind.check_schema(rules)
    blocks = _FENCED.findall(response)
    try:
        value = json.loads(blocks[-1] if blocks else response, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return 0.0
    no_documents: Registry[Any] = Registry()
    return float(kind(rules, registry=no_documents).is_valid(value))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")
