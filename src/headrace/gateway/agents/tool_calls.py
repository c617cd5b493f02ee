"""Calls of tools, read in what the policy wrote. What does not parse is text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

from headrace.experience.text.stops import first_place
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


class Watch(Protocol):
    """Of a text that comes in pieces: what its parser will have it be, whatever comes behind it."""

    def push(self, piece: str) -> ParsedText:
        """More of the text, and more calls: none of what may be a call, or the white space before one."""


@dataclass(frozen=True, slots=True)
class Parser:
    """One way to write calls."""

    read: Callable[[str], ParsedText]
    """Raises ValueError, KeyError or TypeError for calls that are none."""
    watch: Callable[[], Watch]
    marks: tuple[str, ...]
    """Texts by which it tells calls from what is said; in some models special tokens."""


def parse_tool_calls(text: str, parser: Parser | None) -> ParsedText:
    """By `parser`, if there is one; where a call does not parse, all of it is text."""
    if parser is None:
        return ParsedText(text)
    try:
        return parser.read(text)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ParsedText(text)


_HERMES = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_MISTRAL, _MISTRAL_ID, _MISTRAL_ARGUMENTS = _MISTRAL_MARKS = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
_PYTHON_TAG = "<|python_tag|>"
_HERMES_MARKS = ("<tool_call>", "</tool_call>")
_QWEN3_MARKS, _QWEN3_END = ("<tool_call>", "<function="), "</function>"
_QWEN3_ALL = (*_HERMES_MARKS, "<function=", _QWEN3_END, "<parameter=", "</parameter>")


def _hermes(text: str) -> ParsedText:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, of Hermes and Qwen."""
    calls = tuple(_call_of(_json(found.group(1))) for found in _HERMES.finditer(text))
    return ParsedText(text.partition("<tool_call>")[0].rstrip() if calls else text, calls)


def _qwen3_xml(text: str) -> ParsedText:
    """`<function=NAME><parameter=KEY>VALUE</parameter></function>`, of Qwen3-Coder: what is JSON is taken as JSON."""
    calls = tuple(map(_function, _FUNCTION.finditer(text)))
    before = re.split("|".join(_QWEN3_MARKS), text, maxsplit=1)[0]
    return ParsedText(before.rstrip() if calls else text, calls)


def _mistral(text: str) -> ParsedText:
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or, of newer models, once for each call
    `[TOOL_CALLS]NAME[ARGS]{...}`, some with `[CALL_ID]ID` behind the name."""
    before, *after = text.split(_MISTRAL)
    if not after:
        return ParsedText(text)
    if _MISTRAL_ARGUMENTS in after[0]:
        return ParsedText(before.rstrip(), tuple(map(_named_call, after)))
    calls = _json(_MISTRAL.join(after).strip())
    several = calls if isinstance(calls, list) else [calls]
    return ParsedText(before.rstrip(), tuple(map(_call_of, several)))


def _named_call(text: str) -> ToolCall:
    """Raises ValueError unless it is one."""
    head, found, arguments = text.partition(_MISTRAL_ARGUMENTS)
    name, _, number = head.partition(_MISTRAL_ID)
    if not found:
        raise ValueError("a call has arguments")
    return replace(_call_of({"name": name.strip(), "arguments": _json(arguments.strip())}), id=number.strip() or None)


def _llama3_json(text: str) -> ParsedText:
    """The whole text is `{"name": ..., "parameters": {...}}`."""
    stripped = text.strip().removeprefix(_PYTHON_TAG).strip()
    if not stripped.startswith("{"):
        return ParsedText(text)
    return ParsedText("", (_call_of(_json(stripped), "parameters"),))


class _BeforeMarks:
    """Text up to the first mark. Of what is behind it one call that does not parse makes text of all."""

    def __init__(self, *marks: str) -> None:
        self._marks = marks
        self._is_met = False
        self._held = ""

    def push(self, piece: str) -> ParsedText:
        """See `Watch.push`."""
        self._held += piece
        if self._is_met:
            return ParsedText("")
        place = first_place(self._held, self._marks)
        self._is_met = self._held.startswith(self._marks, place)
        text = self._held[:place].rstrip()
        self._held = self._held[len(text) :]
        return ParsedText(text)


class _Functions(_BeforeMarks):
    """Text up to the first mark, then each call that is whole: nothing behind it can make text of it."""

    def __init__(self) -> None:
        super().__init__(*_QWEN3_MARKS)

    def push(self, piece: str) -> ParsedText:
        """See `Watch.push`."""
        text, calls = super().push(piece).text, []
        if self._is_met and _QWEN3_END in self._held[-len(piece) - len(_QWEN3_END) :]:
            while found := _FUNCTION.search(self._held):
                calls.append(_function(found))
                self._held = self._held[found.end() :]
        return ParsedText(text, tuple(calls))


class _AtBeginning:
    """All of a text is a call, or none of it."""

    def __init__(self) -> None:
        self._held = ""
        self._is_text: bool | None = None
        """None: not known yet."""

    def push(self, piece: str) -> ParsedText:
        """See `Watch.push`."""
        if self._is_text is not None:
            return ParsedText(piece if self._is_text else "")
        self._held += piece
        head = self._held.lstrip()
        if not _PYTHON_TAG.startswith(head) and (head := head.removeprefix(_PYTHON_TAG).lstrip()):
            self._is_text = not head.startswith("{")
        return ParsedText(self._held if self._is_text else "")


PARSERS: Mapping[str, Parser] = {
    "hermes": Parser(_hermes, lambda: _BeforeMarks("<tool_call>"), _HERMES_MARKS),
    "llama3_json": Parser(_llama3_json, _AtBeginning, (_PYTHON_TAG,)),
    "mistral": Parser(_mistral, lambda: _BeforeMarks(_MISTRAL), _MISTRAL_MARKS),
    "qwen3_xml": Parser(_qwen3_xml, _Functions, _QWEN3_ALL),
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
    """Raises ValueError or KeyError unless it is a call."""
    name, arguments = value["name"], value.get(key, {})
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("a call has a name, and an object of arguments")
    return ToolCall(name, arguments)


def _function(found: re.Match[str]) -> ToolCall:
    return ToolCall(found.group(1), {key: _value(value) for key, value in _PARAMETER.findall(found.group(2))})


def _value(text: str) -> Any:
    try:
        return _json(text)
    except (ValueError, RecursionError):
        return text


def _json(text: str) -> Any:
    """Raises ValueError, RecursionError."""
    value = json.loads(text, parse_constant=_refuse)
    check_plain(value)
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")
