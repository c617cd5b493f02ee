"""Conversations as rewards see them: messages with `role` and `content`.

The process that scores rewards reads this file, so it imports the standard library alone.
"""

from __future__ import annotations

Messages = list[dict[str, str]]
"""Each with `role` (system, user, assistant) and `content`."""


def are_messages(value: object) -> bool:
    """Whether `value` is of this form; keys beside the two may be there, of text as well."""
    return isinstance(value, list) and all(
        isinstance(part, dict) and {"role", "content"} <= part.keys() and all(isinstance(v, str) for v in part.values())
        for part in value
    )


def opening(prompt: str | Messages) -> Messages:
    """What the policy reads first: text is taken for a user's message."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def conversation(prompt: str | Messages, response: str, messages: Messages | None) -> Messages:
    """`messages`, or the prompt and the one response to it where None are given."""
    return [*opening(prompt), {"role": "assistant", "content": response}] if messages is None else messages
