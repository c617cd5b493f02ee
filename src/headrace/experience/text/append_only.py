"""Whether a chat template only adds to what it has rendered, when more messages follow."""

from __future__ import annotations

from itertools import pairwise

from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.messages import Message, Tool

ASKED: Message = {"role": "user", "content": "one"}
_CALL_ID = "c00000000"
"""Of nine letters and digits: Mistral's templates refuse all else."""
_CALL = {"id": _CALL_ID, "type": "function", "function": {"name": "look", "arguments": {"key": "two"}}}
PROBES: dict[str, list[Message]] = {
    "a user's message": [ASKED, {"role": "assistant", "content": "three"}, {"role": "user", "content": "four"}],
    "a tool's result": [
        ASKED,
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "content": "four", "tool_call_id": _CALL_ID, "name": "look"},
    ],
    "a user's message after a thought": [
        ASKED,
        {"role": "assistant", "content": "three", "reasoning_content": "why"},
        {"role": "user", "content": "four"},
    ],
}
"""Conversations by what follows the answer in them."""

TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}
_TURNS: list[Message] = [
    {"role": ("user", "assistant")[place % 2], "content": word}
    for place, word in enumerate(("one", "two", "three") * 3)
]
_OPENINGS: dict[str, tuple[list[Message], list[Tool] | None]] = {
    "the system message": ([{"role": "system", "content": "five"}, *_TURNS[:3]], None),
    "the tools": (_TURNS[:3], [TOOL]),
    "earlier turns": (_TURNS[:7], None),
}
"""Conversations by what of them a template may show elsewhere, or no more, once more turns follow."""


def moving(template: ChatTemplate) -> list[str]:
    """What of a conversation up to a user's message the template renders otherwise once more turns follow, in words;
    empty: nothing that was tried."""
    return [what for what, (messages, tools) in _OPENINGS.items() if _moves(template, messages, tools)]


def _moves(template: ChatTemplate, messages: list[Message], tools: list[Tool] | None) -> bool:
    try:
        ends = [end for end in range(1, len(messages) + 1) if messages[end - 1]["role"] == "user"]
        shown = [template.render(messages[:end], tools, asks=False) for end in ends]
    except ValueError:
        return False
    return not all(more.startswith(before) for before, more in pairwise(shown))


def rewriting(template: ChatTemplate) -> list[str]:
    """What makes the template render an answer otherwise once it follows, in words; empty: nothing that was tried."""
    return [what for what, messages in PROBES.items() if _changes(template, messages)]


def _changes(template: ChatTemplate, messages: list[Message]) -> bool:
    try:
        before = template.render(messages[:2], asks=False)
        return not template.render(messages).startswith(before)
    except ValueError:  # it takes no such messages, which who sends them is told
        return False
