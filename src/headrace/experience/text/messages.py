"""Chat messages and tools of a dataset's row, checked, and brought to the one form that chat templates read.

A message has `role` and `content`, both text, and may have `tool_calls` and further keys, as `name`, `tool_call_id` or
`reasoning_content`, which go to the template as they are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from headrace.experience.text.strict_json import finite, refuse_constant

Message = dict[str, Any]
Tool = dict[str, Any]


def as_messages(value: list[Any]) -> list[Message]:
    """`value` in one form: content parts of text joined, null beside tool calls made an empty text, other keys
    that are null left out, the arguments of tool calls objects. Raises ValueError with the mend."""
    if not value:
        raise ValueError("there are no messages; give one at least")
    return [_message(part, f"message {place}") for place, part in enumerate(value, start=1)]


def with_text_arguments(messages: Sequence[Message]) -> list[Message]:
    """`messages` with the arguments of tool calls as JSON text, which some templates want."""

    def call_of(call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}

    return [
        {**message, "tool_calls": [call_of(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def as_tools(value: Any) -> list[Tool] | None:
    """JSON schemas of tools, as a list or as its JSON text; None if there are none. Raises ValueError with the mend."""
    if isinstance(value, str):
        value = _parsed(value, "the tools")
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise ValueError(f"the tools are {_brief(value)}; give a list of JSON schemas")
    for place, tool in enumerate(value, start=1):
        inner = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
            raise ValueError(
                f"tool {place} is {_brief(tool)}; give a JSON schema with a name, as "
                "{'type': 'function', 'function': {'name': ..., 'description': ..., 'parameters': ...}}"
            )
    return value


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str) or not value["role"]:
        raise ValueError(f"{where} is {_brief(value)}; give {{'role': text, 'content': text}}")
    where = f"{where} (of {value['role']})"
    message = {name: entry for name, entry in value.items() if entry is not None}
    message["content"] = _content(value.get("content"), where)
    if value.get("content") is None and "tool_calls" not in message:
        raise ValueError(f"{where} has no content; give {{'role': text, 'content': text}}")
    if "tool_calls" in message:
        calls = message.pop("tool_calls")
        if not isinstance(calls, list):
            raise ValueError(f"{where} has tool_calls {_brief(calls)}; give a list")
        if calls:
            message["tool_calls"] = [_tool_call(call, where) for call in calls]
    return message


def _content(value: Any, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError(f"{where} has the content {_brief(value)}; give text, or a list of parts of text")
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            named = f"a part of type {kind!r}" if kind not in (None, "text") else f"the part {_brief(part)}"
            raise ValueError(
                f"{where} has {named}, and Headrace trains on text; give parts {{'type': 'text', 'text': ...}}, or "
                "remove the row"
            )
        texts.append(part["text"])
    return "".join(texts)


def _tool_call(value: Any, where: str) -> dict[str, Any]:
    """As templates read it: `{"type": "function", "function": {"name", "arguments"}}`, the arguments an object."""
    call = {name: entry for name, entry in value.items() if entry is not None} if isinstance(value, dict) else {}
    inner = call.pop("function", None) or {name: call.pop(name) for name in ("name", "arguments") if name in call}
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise ValueError(
            f"{where} has the tool call {_brief(value)}; give {{'type': 'function', 'function': {{'name': text, "
            "'arguments': object}}"
        )
    name, arguments = inner["name"], inner.get("arguments")
    if isinstance(arguments, str):
        arguments = _parsed(arguments, f"{where}: the arguments of the call of {name!r}") if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError(f"{where}: the arguments of the call of {name!r} are {_brief(arguments)}; give an object")
    return {**call, "type": call.get("type", "function"), "function": {**inner, "arguments": arguments}}


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text, parse_constant=refuse_constant, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} are {_brief(text)}, which is not JSON ({error}); correct it") from error


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
