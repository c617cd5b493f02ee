"""Whether a chat template only adds to what it has rendered, when more messages follow."""

from __future__ import annotations

from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.messages import Message

ASKED: Message = {"role": "user", "content": "one"}
_CALL = {"id": "call_0_0", "type": "function", "function": {"name": "look", "arguments": {"key": "two"}}}
PROBES: dict[str, list[Message]] = {
    "a user's message": [ASKED, {"role": "assistant", "content": "three"}, {"role": "user", "content": "four"}],
    "a tool's result": [
        ASKED,
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "content": "four", "tool_call_id": "call_0_0", "name": "look"},
    ],
    "a user's message after a thought": [
        ASKED,
        {"role": "assistant", "content": "three", "reasoning_content": "why"},
        {"role": "user", "content": "four"},
    ],
}
"""Conversations by what follows the answer in them."""


def rewriting(template: ChatTemplate) -> list[str]:
    """What makes the template render an answer otherwise once it follows, in words; empty: nothing that was tried."""
    return [what for what, messages in PROBES.items() if _changes(template, messages)]


def _changes(template: ChatTemplate, messages: list[Message]) -> bool:
    try:
        before = template.render(messages[:2], asks=False)
        return not template.render(messages).startswith(before)
    except ValueError:  # it takes no such messages, which who sends them is told
        return False
