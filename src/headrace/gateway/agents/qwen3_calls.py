"""Calls as Qwen3-Coder writes them: `<function=NAME><parameter=KEY>VALUE</parameter></function>`.

Values are written as they are, whatever is in them. So one ends where the next parameter begins behind its mark, or the
call ends; and where that would leave a mark over, or take one in, it is not known where: then there is no call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from headrace.experience.text.messages import Tool
from headrace.gateway.agents.declared_types import argument_of, schema_of
from headrace.gateway.agents.parsed_text import ParsedText, ToolCall, said_around

BEGIN = ("<tool_call>", "<function=")
"""What a call begins with."""
_PARAMETER_END, _FUNCTION_END = "</parameter>", "</function>"
MARKS = (*BEGIN, "<parameter=", _PARAMETER_END, _FUNCTION_END, "</tool_call>")

_NAME = r"([^<>\s]+)>"
_HEAD = re.compile(rf"(?:<tool_call>\s*)?<function={_NAME}")
_KEY = re.compile(rf"<parameter={_NAME}")
_SPACE = re.compile(r"\s*")
_VALUE_END = re.compile(rf"{_PARAMETER_END}(?=\s*(?:{_KEY.pattern}|{_FUNCTION_END}))")
_END = re.compile(rf"{_FUNCTION_END}(?:\s*</tool_call>)?")


def read_qwen3(text: str, tools: Sequence[Tool]) -> ParsedText:
    """All calls before the first that does not parse: that one and what is behind it is text."""
    calls, said, place = [], [], 0
    while (head := _HEAD.search(text, place)) and (found := _call(text, head, tools)):
        said.append(text[place : head.start()])
        call, place = found
        calls.append(call)
    return ParsedText(said_around(*said, text[place:]) if calls else text, tuple(calls))


def _call(text: str, head: re.Match[str], tools: Sequence[Tool]) -> tuple[ToolCall, int] | None:
    """The one that begins with `head`, and where it ends; None if it does not parse."""
    name, arguments = head.group(1), dict[str, Any]()
    schema, place = schema_of(name, tools), _behind_space(text, head.end())
    while key := _KEY.match(text, place):
        end = _VALUE_END.search(text, key.end())
        if end is None or _KEY.search(text, key.end(), end.start()):
            return None
        value = text[key.end() : end.start()].removeprefix("\n").removesuffix("\n")
        arguments[key.group(1)] = argument_of(value, schema, key.group(1))
        place = _behind_space(text, end.end())
    end = _END.match(text, place)
    if end is None:
        return None
    following = _HEAD.search(text, end.end())
    is_cut = _PARAMETER_END in text[end.end() : following.start() if following else len(text)]
    return None if is_cut else (ToolCall(name, arguments), end.end())


def _behind_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place
