"""From the JSON of an agent's request to what it asks of the policy.

What becomes of sampling parameters is the session's to say. What would change the distribution in a way that is not
recorded is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from headrace.experience.text.messages import Message, Tool, as_messages, as_tools
from headrace.gateway.agents.plain_json import check_plain
from headrace.gateway.errors import ApiError
from headrace.gateway.fields import Fields
from headrace.gateway.template_variables import checked_variables

_MAX_CHOICES = 64
_MAX_STOPS, _LONGEST_STOP = 16, 256
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos", "stop_token_ids")
"""What the run decides, unless `gateway.sampling` has a client decide it."""
_IGNORED = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning_effort",
    "verbosity",
    "parallel_tool_calls",
)
_INERT = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": {},
    "best_of": 1,
    "echo": False,
    "suffix": "",
    "response_format": {"type": "text"},
    "modalities": ["text"],
}
"""What would change the distribution that is trained, with the value that asks for nothing."""
_CONSTRAINED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "grammar")
_THOUGHTS = ("thinking", "reasoning")
"""Other names that clients have for `reasoning_content`."""
_OF_NO_TOOL = ("strict", "cache_control")


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """What both routes ask for."""

    n: int
    max_tokens: int | None
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    logprobs: bool
    sampling: Mapping[str, Any]
    """Sampling parameters that the client gave, unread."""

    def without_prompt(self) -> Self:
        """What an answer is worded by."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ChatRequest(AgentRequest):
    messages: list[Message]
    tools: list[Tool] | None
    tool_choice: str
    """`auto`, `none`, `required`, or a tool's name after `=`."""
    variables: dict[str, Any] = field(default_factory=dict)
    """Of the chat template."""

    def without_prompt(self) -> Self:
        """See `AgentRequest`."""
        return replace(self, messages=[], tools=None, variables={})


@dataclass(frozen=True, slots=True)
class TextRequest(AgentRequest):
    prompt: str | tuple[int, ...]

    def without_prompt(self) -> Self:
        """See `AgentRequest`."""
        return replace(self, prompt="")


def parse_agent_chat(body: Any, model: str) -> ChatRequest:
    """Raises ApiError."""
    fields = _of_model(body, model)
    if fields.integer("top_logprobs", 0, 0, 20) > 0:
        raise ApiError("top_logprobs above 0 are not supported: leave it out", param="top_logprobs")
    messages = _messages(fields.get("messages"))
    tools, more = as_checked_tools(fields.get("tools"))
    choice = checked_choice(fields.get("tool_choice"), tools)
    variables = checked_variables(fields.get("chat_template_kwargs"))
    common = _common(fields, logprobs=fields.flag("logprobs"))
    common["sampling"] |= more
    return ChatRequest(**common, messages=messages, tools=tools, tool_choice=choice, variables=variables)


def parse_agent_text(body: Any, model: str, vocab_size: int | None = None) -> TextRequest:
    """Raises ApiError."""
    fields = _of_model(body, model)
    value = fields.get("prompt")
    prompt: str | tuple[int, ...]
    match value:
        case str() if value:
            prompt = value
        case [int(), *_]:
            prompt = fields.integers("prompt", (vocab_size or 2**31) - 1)
        case [str() as only] if only:
            prompt = only
        case _:
            raise ApiError("prompt must be text, or token ids: one prompt a request", param="prompt")
    if fields.integer("logprobs", 0, 0, 5) > 0:
        raise ApiError("logprobs above 0 are not supported: 0 gives those of the sampled tokens", param="logprobs")
    logprobs = isinstance(body, dict) and body.get("logprobs") is not None
    return TextRequest(**_common(fields, logprobs=logprobs), prompt=prompt)


def _of_model(body: Any, model: str) -> Fields:
    fields = Fields(body)
    checked_model(fields.get("model"), model)
    return fields


def checked_model(given: Any, model: str) -> None:
    """Raises ApiError for another one than is there."""
    if given not in (None, model):
        raise ApiError(
            f"no model {given!r} here; ask for {model!r} (gateway.model_name)",
            param="model",
            code="model_not_found",
            status=404,
        )


def _common(fields: Fields, *, logprobs: bool) -> dict[str, Any]:
    """The fields of `AgentRequest`."""
    old, new = (fields.optional_integer(name, 1, 2**31 - 1) for name in ("max_tokens", "max_completion_tokens"))
    options = fields.get("stream_options")
    include_usage = options is not None and Fields(options, "stream_options").flag("include_usage")
    found: dict[str, Any] = {
        "n": fields.integer("n", 1, 1, _MAX_CHOICES),
        "max_tokens": new if new is not None else old,
        "stop": checked_stops(fields.get("stop")),
        "stream": fields.flag("stream"),
        "include_usage": include_usage,
        "logprobs": logprobs,
        "sampling": fields.among(SAMPLING),
    }
    for name in _CONSTRAINED:
        if fields.get(name) is not None:
            raise _untrainable(name)
    for name, inert in _INERT.items():
        if (value := fields.get(name)) is not None and value != inert:
            raise _untrainable(name)
    fields.refuse_rest({}, _IGNORED)
    return found


def _untrainable(name: str) -> ApiError:
    return ApiError(
        f"{name} would sample from another distribution than the one that is trained; leave it out", param=name
    )


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ApiError("messages must be a list of at least one message", param="messages")
    return as_checked_messages(value)


def as_checked_messages(value: list[Any]) -> list[Message]:
    """Raises ApiError."""
    try:
        messages = as_messages(value)
        if calls := [call["function"] for message in messages for call in message.get("tool_calls", ())]:
            check_plain(calls)
    except (ValueError, RecursionError) as error:  # which may be text within, that is JSON in turn
        raise ApiError(str(error).replace("remove the row", "leave it out"), param="messages") from error
    if messages[-1]["role"] == "assistant":
        raise ApiError(
            "the last message is the assistant's, and what the policy did not sample cannot begin its turn; end with a "
            "user's message or a tool's result",
            param="messages",
        )
    return [_in_one_form(each) for each in messages]


def _in_one_form(message: Message) -> Message:
    """A developer's is the system's, and a thought has the name that answers have it by here."""
    if message["role"] == "developer":
        return {**message, "role": "system"}
    if message["role"] != "assistant" or message.get("reasoning_content"):
        return message
    for name in _THOUGHTS:
        if isinstance(thought := message.get(name), str) and thought:
            return {**{other: value for other, value in message.items() if other != name}, "reasoning_content": thought}
    return message


def as_checked_tools(value: Any) -> tuple[list[Tool] | None, dict[str, Any]]:
    """The tools without `strict`, which nothing enforces here, and without `cache_control`, which clients move from one
    to another; and `strict` as a sampling parameter, if one of them wants that. Raises ApiError."""
    try:
        tools = as_tools(value)
    except ValueError as error:
        raise ApiError(str(error), param="tools") from error
    if tools is None:
        return None, {}
    plain = [_plain_tool(tool) for tool in tools]
    is_strict = any(tool.get("function", tool).get("strict") for tool in tools)
    return plain, {"strict": True} if is_strict else {}


def _plain_tool(tool: Tool) -> Tool:
    plain = {name: value for name, value in tool.get("function", tool).items() if name not in _OF_NO_TOOL}
    rest = {name: value for name, value in tool.items() if name not in _OF_NO_TOOL}
    return {**rest, "function": plain} if "function" in tool else plain


def checked_choice(value: Any, tools: list[Tool] | None) -> str:
    """As `ChatRequest.tool_choice`. Raises ApiError."""
    if value is None or value in ("auto", "none") or (value == "required" and tools):
        return value or "auto"
    function = value.get("function") if isinstance(value, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    known = [tool.get("function", tool)["name"] for tool in tools or ()]
    if name in known:
        return f"={name}"
    raise ApiError(
        f"tool_choice is {str(value)[:80]!r}; give auto, none, required, or one of the tools ({', '.join(known)})",
        param="tool_choice",
    )


def checked_stops(value: Any) -> tuple[str, ...]:
    """Raises ApiError."""
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if (
        not isinstance(stops, list)
        or len(stops) > _MAX_STOPS
        or not all(isinstance(stop, str) and 1 <= len(stop) <= _LONGEST_STOP for stop in stops)
    ):
        raise ApiError(f"stop takes up to {_MAX_STOPS} texts of 1 to {_LONGEST_STOP} characters", param="stop")
    return tuple(stops)
