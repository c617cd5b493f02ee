"""Anthropic's `/v1/messages`: blocks to chat messages, and an answer as blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.experience.text.messages import Message
from headrace.gateway.agents.agent_requests import ChatRequest, checked_model, checked_stops
from headrace.gateway.agents.agent_requests import as_checked_messages as as_checked
from headrace.gateway.agents.agent_requests import as_checked_tools as as_tools
from headrace.gateway.agents.answered import Answered
from headrace.gateway.errors import ApiError
from headrace.gateway.fields import Fields

_SAMPLING = ("temperature", "top_p", "top_k")
_IGNORED = (
    "cache_control",
    "container",
    "context_management",
    "inference_geo",
    "metadata",
    "service_tier",
    "speed",
    "thinking",
)
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}
_FAILED = "Error"
"""What a tool's result begins with that is one of a failure, since chat templates have no other place for that."""
_NO_THREADS = "message threads are not kept here: send the whole conversation, as with thread=False"


def parse_messages(body: Any, model: str) -> ChatRequest:
    """Raises ApiError."""
    fields = Fields(body)
    checked_model(fields.get("model"), model)
    if fields.get("thread") is not None:
        raise ApiError(_NO_THREADS, param="thread", code="thread_unsupported_request")
    messages: list[Message] = []
    if (system := fields.get("system")) is not None:
        messages.append({"role": "system", "content": _text_of(system, "system")})
    given = fields.get("messages")
    if not isinstance(given, list) or not given:
        raise ApiError("messages must be a list of at least one message", param="messages")
    for place, one in enumerate(given, start=1):
        messages += _messages_of(one, f"message {place}")
    tools, more = as_tools(_tools(fields.get("tools")))
    form = fields.get("output_config")
    if isinstance(form, Mapping) and form.get("format") is not None:
        what = "output_config.format would sample from another distribution than the one that is trained"
        raise ApiError(what, param="output_config")
    choice = _tool_choice(fields.get("tool_choice"), [tool["function"]["name"] for tool in tools or ()])
    asked = ChatRequest(
        n=1,
        max_tokens=fields.optional_integer("max_tokens", 1, 2**31 - 1),
        stop=checked_stops(fields.get("stop_sequences")),
        stream=fields.flag("stream"),
        include_usage=True,
        logprobs=False,
        sampling=fields.among(_SAMPLING) | more,
        messages=as_checked(messages),
        tools=tools,
        tool_choice=choice,
    )
    fields.refuse_rest({}, _IGNORED)
    return asked


def whole_message(answered: Answered) -> dict[str, Any]:
    choice = answered.choices[0]
    return {
        **message_head(answered),
        "content": _blocks(choice.message),
        "stop_reason": "stop_sequence" if choice.stopped_by else _STOP_REASONS[choice.finish_reason],
        "stop_sequence": choice.stopped_by,
        "usage": _usage(answered),
    }


def messages_error(error: ApiError) -> dict[str, Any]:
    """By its `details` the official client knows what to do: `tool_runner` goes on without a thread."""
    usual = "api_error" if error.status >= 500 else "invalid_request_error"
    kind = _ERRORS.get(error.status, usual)
    details = {"details": {"error_code": error.code}} if error.code else {}
    return {"type": "error", "error": {"type": kind, "message": str(error), **details}}


def message_head(answered: Answered) -> dict[str, Any]:
    """What is known before anything is said."""
    return {"id": f"msg_{answered.number}", "type": "message", "role": "assistant", "model": answered.model}


def _usage(answered: Answered) -> dict[str, Any]:
    usage = answered.usage
    return {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}


def _blocks(message: Message) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": ""})
    if message["content"] or "tool_calls" not in message:
        blocks.append({"type": "text", "text": message["content"]})
    return blocks + [tool_use(call) for call in message.get("tool_calls", ())]


def tool_use(call: Mapping[str, Any]) -> dict[str, Any]:
    """The block of a message's call."""
    function = call["function"]
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": function["arguments"]}


def _messages_of(value: Any, where: str) -> list[Message]:
    """Results of tools are messages of their own, before what else a user's message says."""
    if not isinstance(value, Mapping) or value.get("role") not in ("user", "assistant", "system"):
        raise ApiError(f"{where} must have the role user or assistant", param="messages")
    role, content = str(value["role"]), value.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise ApiError(f"{where} must have text or a list of blocks as its content", param="messages")
    results: list[Message] = []
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in content:
        kind = block.get("type") if isinstance(block, Mapping) else None
        match kind:
            case "text":
                texts.append(_text_of([block], where))
            case "thinking":
                thoughts.append(str(block.get("thinking", "")))
            case "redacted_thinking":
                pass
            case "tool_use":
                function = {"name": block.get("name"), "arguments": block.get("input") or {}}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            case "tool_result":
                said = _text_of(block.get("content") or "", where)
                if block.get("is_error"):
                    said = f"{_FAILED}: {said}" if said else _FAILED
                results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": said})
            case _:
                raise ApiError(
                    f"{where} has a block of type {kind!r}, and Headrace trains on text; give text, tool_use and "
                    "tool_result",
                    param="messages",
                )
    if role == "assistant":
        own: Message = {"role": role, "content": "".join(texts)}
        more = {"tool_calls": calls} if calls else {}
        return [{**own, **more, **({"reasoning_content": "".join(thoughts)} if thoughts else {})}]
    return results + ([{"role": role, "content": "".join(texts)}] if texts or not results else [])


def _text_of(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ApiError(f"{where} has a block of type {kind!r} where text is read; give text", param="messages")
    return "".join(part["text"] for part in parts)


def _tools(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    tools = []
    for tool in value:
        if not isinstance(tool, Mapping) or "input_schema" not in tool:
            raise ApiError(f"the tool {str(tool)[:80]} has no input_schema; only such are called here", param="tools")
        more = {name: tool[name] for name in ("description", "strict") if name in tool}
        function = {"name": tool.get("name"), **more, "parameters": tool["input_schema"]}
        tools.append({"type": "function", "function": function})
    return tools


def _tool_choice(value: Any, names: list[str]) -> str:
    kind = None if value is None else value.get("type") if isinstance(value, Mapping) else value
    if kind in (None, "auto", "none"):
        return kind or "auto"
    if kind == "any" and names:
        return "required"
    if kind == "tool" and isinstance(value, Mapping) and value.get("name") in names:
        return f"={value['name']}"
    raise ApiError(f"tool_choice is {str(value)[:80]}; its tools are {', '.join(names) or 'none'}", param="tool_choice")
