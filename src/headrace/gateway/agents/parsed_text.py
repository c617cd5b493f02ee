"""What a text of the policy's is read as, and the JSON in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from headrace.gateway.agents.plain_json import check_plain


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]
    id: str | None = None
    """If the policy wrote one."""


@dataclass(frozen=True, slots=True)
class ParsedText:
    """What the policy wrote: text, calls of tools, and a thought before them."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    thought: str | None = None


def said_around(before: str, *after: str) -> str:
    """What is said before the first call and behind each, one below the other, without the white space around calls."""
    return "\n".join(part for part in (before.rstrip(), *map(str.strip, after)) if part)


def read_json(text: str) -> Any:
    """Raises ValueError, RecursionError."""
    value = json.loads(text, parse_constant=_refuse)
    check_plain(value)
    return value


def read_json_at(text: str, place: int) -> tuple[Any, int]:
    """The value that begins at `place`, and where it ends. Raises ValueError, RecursionError."""
    value, end = _DECODER.raw_decode(text, place)
    check_plain(value)
    return value, end


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
