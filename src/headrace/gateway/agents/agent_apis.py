"""The APIs that agents speak, each as what it takes and how it words an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.gateway.agents.agent_requests import AgentRequest, parse_agent_chat, parse_agent_text
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.answered import Answered, chat_events, text_events, whole_chat, whole_text
from headrace.gateway.agents.messages_api import message_events, messages_error, parse_messages, whole_message
from headrace.gateway.agents.responses_api import parse_response, response_events, whole_response
from headrace.gateway.errors import ApiError

Event = tuple[str | None, dict[str, Any]]
"""Of a stream: its name, if the API names events, and its data."""


@dataclass(frozen=True, slots=True)
class AgentApi:
    parse: Callable[[Any, AgentSession], AgentRequest]
    """Of the JSON of a request. Raises ApiError."""
    whole: Callable[[AgentRequest, Answered], dict[str, Any]]
    events: Callable[[AgentRequest, Answered], list[Event]]
    """Of a stream."""
    error: Callable[[ApiError], dict[str, Any]]
    last: bytes = b""
    """What ends a stream."""


def _openai_error(error: ApiError) -> dict[str, Any]:
    return error.body


def _unnamed(events: list[dict[str, Any]]) -> list[Event]:
    return [(None, event) for event in events]


_DONE = b"data: [DONE]\n\n"

CHAT = AgentApi(
    lambda body, session: parse_agent_chat(body, session.model),
    lambda _, answered: whole_chat(answered),
    lambda asked, answered: _unnamed(chat_events(answered, include_usage=asked.include_usage)),
    _openai_error,
    _DONE,
)
TEXT = AgentApi(
    lambda body, session: parse_agent_text(body, session.model),
    lambda _, answered: whole_text(answered),
    lambda asked, answered: _unnamed(text_events(answered, include_usage=asked.include_usage)),
    _openai_error,
    _DONE,
)
MESSAGES = AgentApi(
    lambda body, session: parse_messages(body, session.model),
    lambda _, answered: whole_message(answered),
    lambda _, answered: message_events(answered),
    messages_error,
)
RESPONSES = AgentApi(
    lambda body, session: parse_response(body, session.model, session.conversation_of),
    whole_response,
    response_events,
    _openai_error,
)

APIS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": TEXT,
    "/v1/messages": MESSAGES,
    "/v1/responses": RESPONSES,
}
"""By their paths."""
