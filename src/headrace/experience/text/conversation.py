"""Conversations as rewards see them: messages with `role` and `content`.

The process that scores rewards reads this file, so it imports the standard library alone.
"""

from __future__ import annotations

from typing import Any

Messages = list[dict[str, Any]]
"""Each with `role` (system, user, assistant, tool) and `content`, both text, and perhaps further keys of JSON values,
as `tool_calls`."""


def are_messages(value: object) -> bool:
    """Whether `value` is of this form."""
    return isinstance(value, list) and all(
        isinstance(part, dict)
        and isinstance(part.get("role"), str)
        and isinstance(part.get("content"), str)
        and _is_json(part)
        for part in value
    )


def _is_json(value: object) -> bool:
    match value:
        case dict():
            return all(isinstance(name, str) and _is_json(entry) for name, entry in value.items())
        case list():
            return all(map(_is_json, value))
    return value is None or isinstance(value, str | int | float | bool)


def opening(prompt: str | Messages) -> Messages:
    """What the policy reads first: text is taken for a user's message."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def conversation(prompt: str | Messages, response: str, messages: Messages | None) -> Messages:
    """`messages`, or the prompt and the one response to it where None are given."""
    return [*opening(prompt), {"role": "assistant", "content": response}] if messages is None else messages
