"""Calls of tools, read in what the policy wrote. What does not parse is text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn


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


Parser = Callable[[str], ParsedText]
"""Raises ValueError, KeyError or TypeError for calls that are none."""

_HERMES = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_MISTRAL = "[TOOL_CALLS]"
_PYTHON_TAG = "<|python_tag|>"


def parse_tool_calls(text: str, parser: Parser | None) -> ParsedText:
    """By `parser`, if there is one; where a call does not parse, all of it is text."""
    if parser is None:
        return ParsedText(text)
    try:
        return parser(text)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ParsedText(text)


def _hermes(text: str) -> ParsedText:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, of Hermes and Qwen."""
    calls = tuple(_call_of(_json(found.group(1))) for found in _HERMES.finditer(text))
    return ParsedText(text.partition("<tool_call>")[0].rstrip() if calls else text, calls)


def _qwen3_xml(text: str) -> ParsedText:
    """`<function=NAME><parameter=KEY>VALUE</parameter></function>`, of Qwen3-Coder: what is JSON is taken as JSON."""
    calls = tuple(
        ToolCall(found.group(1), {key: _value(value) for key, value in _PARAMETER.findall(found.group(2))})
        for found in _FUNCTION.finditer(text)
    )
    before = re.split(r"<tool_call>|<function=", text, maxsplit=1)[0]
    return ParsedText(before.rstrip() if calls else text, calls)


def _mistral(text: str) -> ParsedText:
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`."""
    before, found, after = text.partition(_MISTRAL)
    if not found:
        return ParsedText(text)
    calls = _json(after.strip())
    several = calls if isinstance(calls, list) else [calls]
    return ParsedText(before.rstrip(), tuple(map(_call_of, several)))


def _llama3_json(text: str) -> ParsedText:
    """The whole text is `{"name": ..., "parameters": {...}}`."""
    stripped = text.strip().removeprefix(_PYTHON_TAG).strip()
    if not stripped.startswith("{"):
        return ParsedText(text)
    return ParsedText("", (_call_of(_json(stripped), "parameters"),))


PARSERS: Mapping[str, Parser] = {
    "hermes": _hermes,
    "llama3_json": _llama3_json,
    "mistral": _mistral,
    "qwen3_xml": _qwen3_xml,
}
"""By the names that `gateway.tool_parser` has."""


def parser_of(name: str, template: str) -> Parser | None:
    """The parser of that name; `auto`: the one of the calls that a chat `template` writes; None if there is none."""
    if name != "auto":
        return PARSERS.get(name)
    if "<function=" in template:
        return _qwen3_xml
    if "<tool_call>" in template:
        return _hermes
    if _MISTRAL in template:
        return _mistral
    if _PYTHON_TAG in template or '"parameters": ' in template:
        return _llama3_json
    return None


def _call_of(value: Any, key: str = "arguments") -> ToolCall:
    """Raises ValueError or KeyError unless it is a call."""
    name, arguments = value["name"], value.get(key, {})
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("a call has a name, and an object of arguments")
    return ToolCall(name, arguments)


def _value(text: str) -> Any:
    try:
        return _json(text)
    except ValueError:
        return text


def _json(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")
