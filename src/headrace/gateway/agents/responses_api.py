"""OpenAI's `/v1/responses`: items to chat messages, and an answer as items."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.experience.text.messages import Message
from headrace.gateway.agents.agent_requests import (
    AgentRequest,
    ChatRequest,
    as_checked_messages,
    as_checked_tools,
    checked_choice,
    checked_model,
)
from headrace.gateway.agents.answered import Answered, token_logprobs
from headrace.gateway.errors import ApiError
from headrace.gateway.fields import Fields

_SAMPLING = ("temperature", "top_p")
_IGNORED = (
    "context_management",
    "include",
    "max_tool_calls",
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream_options",
    "truncation",
    "user",
)
_LOGPROBS = "message.output_text.logprobs"
"""What `include` names to have them."""
_TEXTS = ("input_text", "output_text", "text")


@dataclass(frozen=True, slots=True)
class ResponseRequest(ChatRequest):
    instructions: str | None = None
    """Which a later response does not take over."""
    previous: str | None = None
    """The id of the response that it goes on from."""


def parse_response(body: Any, model: str, conversation_of: Callable[[str], list[Message]]) -> ResponseRequest:
    """`conversation_of`: that of an earlier response, by its id. Raises ApiError."""
    fields = Fields(body)
    checked_model(fields.get("model"), model)
    instructions, named = fields.get("instructions"), fields.get("previous_response_id")
    previous = None if named is None else str(named)
    messages: list[Message] = [] if instructions is None else [{"role": "system", "content": str(instructions)}]
    messages += [] if previous is None else conversation_of(previous)
    messages += _messages_of(fields.get("input"))
    tools, more = as_checked_tools(_tools(fields.get("tools")))
    text, include = fields.get("text"), fields.get("include")
    form = text.get("format") if isinstance(text, Mapping) else None
    if form is not None and (not isinstance(form, Mapping) or form.get("type") != "text"):
        raise ApiError("text.format would sample from another distribution than the one that is trained", param="text")
    asked = ResponseRequest(
        n=1,
        max_tokens=fields.optional_integer("max_output_tokens", 1, 2**31 - 1),
        stop=(),
        stream=fields.flag("stream"),
        include_usage=True,
        logprobs=isinstance(include, list) and _LOGPROBS in include,
        sampling=fields.among(_SAMPLING) | more,
        messages=as_checked_messages(messages),
        tools=tools,
        tool_choice=checked_choice(_choice(fields.get("tool_choice")), tools),
        instructions=None if instructions is None else str(instructions),
        previous=previous,
    )
    fields.refuse_rest({"background": False, "top_logprobs": 0}, _IGNORED)
    return asked


def whole_response(asked: AgentRequest, answered: Answered) -> dict[str, Any]:
    is_cut = answered.choices[0].finish_reason == "length"
    return {
        **response_head(asked, answered, "incomplete" if is_cut else "completed"),
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": _items(answered),
        "usage": {
            "input_tokens": answered.usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": answered.usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answered.usage["total_tokens"],
        },
    }


def response_failed(error: ApiError, sent: int) -> dict[str, Any]:
    """Of a stream of which so many events were `sent`: what the client raises (`error`), and what its types have."""
    fields: dict[str, Any] = error.body["error"]
    told = {name: fields[name] for name in ("code", "message", "param")}
    return {"type": "error", **told, "error": fields, "sequence_number": sent}


def response_head(asked: AgentRequest, answered: Answered, status: str) -> dict[str, Any]:
    """What is known before anything is said."""
    assert isinstance(asked, ResponseRequest)
    return {
        "id": f"resp_{answered.number}",
        "object": "response",
        "created_at": answered.created,
        "status": status,
        "error": None,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_tokens,
        "metadata": {},
        "model": answered.model,
        "parallel_tool_calls": True,
        "previous_response_id": asked.previous,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
    }


def _items(answered: Answered) -> list[dict[str, Any]]:
    """What a limit cut off is the message, unless calls come behind it: those that were read are whole."""
    number, choice = answered.number, answered.choices[0]
    message = choice.message
    items = [thought_item(number, message["reasoning_content"])] if message.get("reasoning_content") else []
    if message["content"] or "tool_calls" not in message:
        is_cut = choice.finish_reason == "length" and "tool_calls" not in message
        status = "incomplete" if is_cut else "completed"
        items.append(message_item(number, message["content"], token_logprobs(choice.tokens), status))
    return items + [call_item(number, place, call) for place, call in enumerate(message.get("tool_calls", ()))]


def thought_item(number: int, text: str) -> dict[str, Any]:
    """Of the answer of that number."""
    thought = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": f"rs_{number}", "summary": [], "content": thought}


def message_item(
    number: int, text: str, logprobs: Sequence[dict[str, Any]] = (), status: str = "completed"
) -> dict[str, Any]:
    """What the answer of that number says. `logprobs`: of all its tokens, as in a chat, where they were asked for."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}
    said = {"role": "assistant", "status": status, "content": [part]}
    return {"type": "message", "id": f"msg_{number}", **said}


def call_item(number: int, place: int, call: Mapping[str, Any]) -> dict[str, Any]:
    """Of the answer of that number the call at `place`."""
    arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    called = {"call_id": call["id"], "name": call["function"]["name"], "arguments": arguments}
    return {"type": "function_call", "id": f"fc_{number}_{place}", **called, "status": "completed"}


def _messages_of(value: Any) -> list[Message]:
    """What the assistant said and called in a row is one message."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise ApiError("input must be text, or a list of items", param="input")
    messages: list[Message] = []
    turn: Message | None = None
    """The assistant's, while it goes on."""
    for place, item in enumerate(value, start=1):
        kind = item.get("type", "message") if isinstance(item, Mapping) else None
        is_own = kind in ("function_call", "reasoning") or (kind == "message" and item.get("role") == "assistant")
        if not is_own:
            turn = None
            messages.append(_given(item, kind, f"item {place} of input"))
            continue
        if turn is None:
            turn = {"role": "assistant", "content": ""}
            messages.append(turn)
        if kind == "reasoning":
            turn["reasoning_content"] = _text_of(item.get("content") or [], "reasoning_text")
        elif kind == "message":
            turn["content"] += _text_of(item.get("content"), *_TEXTS)
        else:
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            turn.setdefault("tool_calls", []).append(call)
    return messages


def _given(item: Any, kind: Any, where: str) -> Message:
    """An item that the assistant did not write."""
    match kind:
        case "message":
            return {"role": item.get("role"), "content": _text_of(item.get("content"), *_TEXTS)}
        case "function_call_output":
            said = _text_of(item.get("output"), *_TEXTS)
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": said}
    raise ApiError(
        f"{where} is of type {kind!r}; give messages of text, function_call, function_call_output and reasoning",
        param="input",
    )


def _text_of(value: Any, *kinds: str) -> str:
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind not in kinds or not isinstance(part.get("text"), str):
            raise ApiError(f"input has a part of type {kind!r}, and Headrace trains on text; give text", param="input")
    return "".join(part["text"] for part in parts)


def _tools(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    tools = []
    for tool in value:
        if not isinstance(tool, Mapping) or tool.get("type") != "function":
            raise ApiError(f"the tool {str(tool)[:80]} is no function; only such are called here", param="tools")
        names = ("name", "description", "parameters", "strict")
        tools.append({"type": "function", "function": {name: tool[name] for name in names if name in tool}})
    return tools


def _choice(value: Any) -> Any:
    return {"function": {"name": value.get("name")}} if isinstance(value, Mapping) else value
