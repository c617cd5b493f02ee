"""Calls of tools, read in what the policy wrote. What does not parse is text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headrace.experience.text.messages import Tool
from headrace.experience.text.stops import first_place
from headrace.gateway.agents import qwen3_calls
from headrace.gateway.agents.declared_types import tool_names
from headrace.gateway.agents.parsed_text import ParsedText, ToolCall, read_json, read_json_at, said_around


class Watch(Protocol):
    """Of a text that comes in pieces: what its parser will have said in it, whatever comes behind it."""

    def push(self, piece: str) -> str:
        """More of that: nothing of what may be a call, or behind one, or the white space before it."""


@dataclass(frozen=True, slots=True)
class Parser:
    """One way to write calls."""

    read: Callable[[str, Sequence[Tool]], ParsedText]
    """Of a text, and the tools that there are. Raises ValueError, KeyError or TypeError for calls that are none."""
    watch: Callable[[], Watch]
    marks: tuple[str, ...]
    """Texts by which it tells calls from what is said; in some models special tokens."""


def parse_tool_calls(text: str, parser: Parser | None, tools: Sequence[Tool] = ()) -> ParsedText:
    """By `parser`, if there is one; where a call does not parse, all of it is text."""
    if parser is None:
        return ParsedText(text)
    try:
        return parser.read(text, tools)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ParsedText(text)


_HERMES_MARKS = ("<tool_call>", "</tool_call>")
_HERMES_HEAD, _HERMES_END = re.compile(r"<tool_call>\s*"), re.compile(r"\s*(?:</tool_call>|\Z)")
_MISTRAL, _MISTRAL_ID, _MISTRAL_ARGUMENTS = _MISTRAL_MARKS = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
_MISTRAL_OWN_ID = re.compile(r"[A-Za-z0-9]{9}")
"""What Mistral's templates take as the id of a call."""
_PYTHON_TAG = "<|python_tag|>"
_NAMING = frozenset({"name", "id", "type"})
"""What says which call it is, and nothing of its arguments."""


def _hermes(text: str, _: Sequence[Tool]) -> ParsedText:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, of Hermes and Qwen."""
    calls, said, place = [], [], 0
    while head := _HERMES_HEAD.search(text, place):
        said.append(text[place : head.start()])
        value, place = read_json_at(text, head.end())
        calls.append(_call_of(value))
        end = _HERMES_END.match(text, place)
        if end is None:
            raise ValueError("there is nothing behind a call's object")
        place = end.end()
    return ParsedText(said_around(*said, text[place:]) if calls else text, tuple(calls))


def _mistral(text: str, _: Sequence[Tool]) -> ParsedText:
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or, of newer models, once for each call
    `[TOOL_CALLS]NAME[ARGS]{...}`, some with `[CALL_ID]ID` behind the name."""
    before, *after = text.split(_MISTRAL)
    if not after:
        return ParsedText(text)
    if _MISTRAL_ARGUMENTS in after[0]:
        return ParsedText(before.rstrip(), tuple(map(_named_call, after)))
    calls = read_json(_MISTRAL.join(after).strip())
    several = calls if isinstance(calls, list) else [calls]
    return ParsedText(before.rstrip(), tuple(map(_mistral_call, several)))


def _named_call(text: str) -> ToolCall:
    """Raises ValueError unless it is one."""
    head, found, arguments = text.partition(_MISTRAL_ARGUMENTS)
    name, _, number = head.partition(_MISTRAL_ID)
    if not found:
        raise ValueError("a call has arguments")
    return _mistral_call({"name": name.strip(), "arguments": read_json(arguments.strip()), "id": number.strip()})


def _mistral_call(value: Any) -> ToolCall:
    """With its id only where the template takes that, or every turn behind it would be refused. Raises ValueError or
    KeyError unless it is a call."""
    call = _call_of(value)
    return call if _MISTRAL_OWN_ID.fullmatch(call.id or "") else replace(call, id=None)


def _llama3_json(text: str, tools: Sequence[Tool]) -> ParsedText:
    """The whole text is `{"name": ..., "parameters": {...}}`, or with `arguments`; or the name of a tool that there is,
    and nothing else."""
    stripped = text.strip().removeprefix(_PYTHON_TAG).strip()
    if not stripped.startswith("{"):
        return ParsedText(text)
    value = read_json(stripped)
    key = "parameters" if "parameters" in value else "arguments"
    if key not in value and (set(value) != {"name"} or value["name"] not in tool_names(tools)):
        raise ValueError("what has a name is no call by that alone")
    return ParsedText("", (_call_of(value, key),))


class _BeforeMarks:
    """Text up to the first mark: what is behind it may be calls, with more text behind them, or text."""

    def __init__(self, *marks: str) -> None:
        self._marks = marks
        self._is_met = False
        self._held = ""

    def push(self, piece: str) -> str:
        """See `Watch.push`."""
        if self._is_met:
            return ""
        self._held += piece
        place = first_place(self._held, self._marks)
        self._is_met = self._held.startswith(self._marks, place)
        text = self._held[:place].rstrip()
        self._held = self._held[len(text) :]
        return text


class _AtBeginning:
    """All of a text is a call, or none of it."""

    def __init__(self) -> None:
        self._held = ""
        self._is_text: bool | None = None
        """None: not known yet."""

    def push(self, piece: str) -> str:
        """See `Watch.push`."""
        if self._is_text is not None:
            return piece if self._is_text else ""
        self._held += piece
        head = self._held.lstrip()
        if not _PYTHON_TAG.startswith(head) and (head := head.removeprefix(_PYTHON_TAG).lstrip()):
            self._is_text = not head.startswith("{")
        return self._held if self._is_text else ""


PARSERS: Mapping[str, Parser] = {
    "hermes": Parser(_hermes, lambda: _BeforeMarks(_HERMES_MARKS[0]), _HERMES_MARKS),
    "llama3_json": Parser(_llama3_json, _AtBeginning, (_PYTHON_TAG,)),
    "mistral": Parser(_mistral, lambda: _BeforeMarks(_MISTRAL), _MISTRAL_MARKS),
    "qwen3_xml": Parser(qwen3_calls.read_qwen3, lambda: _BeforeMarks(*qwen3_calls.BEGIN), qwen3_calls.MARKS),
}
"""By the names that `gateway.tool_parser` has."""


def parser_of(name: str, template: str) -> Parser | None:
    """The parser of that name; `auto`: the one of the calls that a chat `template` writes; None if there is none."""
    if name != "auto":
        return PARSERS.get(name)
    for mark, found in (("<function=", "qwen3_xml"), ("<tool_call>", "hermes"), (_MISTRAL, "mistral")):
        if mark in template:
            return PARSERS[found]
    return PARSERS["llama3_json"] if _PYTHON_TAG in template or '"parameters": ' in template else None


def _call_of(value: Any, key: str = "arguments") -> ToolCall:
    """Raises ValueError or KeyError unless it is a call. Without arguments it has nothing that may be meant as some."""
    if key not in value and not set(value) <= _NAMING:
        raise ValueError(f"a call without {key} has nothing but its name")
    name, arguments, own = value["name"], value.get(key, {}), value.get("id")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("a call has a name, and an object of arguments")
    return ToolCall(name, arguments, own if isinstance(own, str) and own else None)
