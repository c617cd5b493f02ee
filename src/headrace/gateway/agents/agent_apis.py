"""The APIs that agents speak, each as what it takes and how it words an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.gateway.agents.agent_requests import AgentRequest, parse_agent_chat, parse_agent_text
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.answered import Answered, whole_chat, whole_text
from headrace.gateway.agents.event_stream import EventStream
from headrace.gateway.agents.messages_api import messages_error, parse_messages, whole_message
from headrace.gateway.agents.messages_stream import MessageStream
from headrace.gateway.agents.openai_streams import ChatStream, TextStream
from headrace.gateway.agents.responses_api import parse_response, response_failed, whole_response
from headrace.gateway.agents.responses_stream import ResponseStream
from headrace.gateway.errors import ApiError


@dataclass(frozen=True, slots=True)
class AgentApi:
    parse: Callable[[Any, AgentSession], AgentRequest]
    """Of the JSON of a request. Raises ApiError."""
    whole: Callable[[AgentRequest, Answered], dict[str, Any]]
    stream: Callable[[AgentRequest, Answered], EventStream]
    """Of an answer that has begun: its choices come later."""
    error: Callable[[ApiError], dict[str, Any]]
    failed: Callable[[ApiError, int], dict[str, Any]]
    """The same as the last event of a stream, after so many others."""
    last: bytes = b""
    """What ends a stream."""


def _openai_error(error: ApiError) -> dict[str, Any]:
    return error.body


_DONE = b"data: [DONE]\n\n"

CHAT = AgentApi(
    parse=lambda body, session: parse_agent_chat(body, session.model),
    whole=lambda _, answered: whole_chat(answered),
    stream=ChatStream,
    error=_openai_error,
    failed=lambda error, _: error.body,
    last=_DONE,
)
TEXT = AgentApi(
    parse=lambda body, session: parse_agent_text(body, session.model),
    whole=lambda _, answered: whole_text(answered),
    stream=TextStream,
    error=_openai_error,
    failed=lambda error, _: error.body,
    last=_DONE,
)
MESSAGES = AgentApi(
    parse=lambda body, session: parse_messages(body, session.model),
    whole=lambda _, answered: whole_message(answered),
    stream=lambda _, answered: MessageStream(answered),
    error=messages_error,
    failed=lambda error, _: messages_error(error),
)
RESPONSES = AgentApi(
    parse=lambda body, session: parse_response(body, session.model, session.conversation_of),
    whole=whole_response,
    stream=ResponseStream,
    error=_openai_error,
    failed=response_failed,
)

APIS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": TEXT,
    "/v1/messages": MESSAGES,
    "/v1/responses": RESPONSES,
}
"""By their paths."""
