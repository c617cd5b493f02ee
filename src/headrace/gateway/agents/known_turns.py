"""Which answer a conversation goes on from: messages are matched by what the API returned."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.experience.text.messages import Message, Tool
from headrace.gateway.agents.token_tree import Node

_REASONING = ("reasoning_content", "reasoning", "thinking", "thinking_blocks")
"""Names of a thought, by which answers are told apart that read alike. Of no meaning in what others say."""
_NOT_SAID = (*_REASONING, "cache_control")
"""Keys of what others say that are no part of it. Clients move `cache_control` to the newest message with each turn."""
_TOO_LARGE = 2**1023
"""For a float."""
_JSON = json.JSONEncoder(sort_keys=True, ensure_ascii=False)

Digest = bytes


class KnownTurns:
    """Answers by the conversation that they end."""

    def __init__(self) -> None:
        self._answers: dict[Digest, list[tuple[Node, tuple[str, ...]]]] = {}

    def remember(self, digest: Digest, node: Node, answer: Message) -> None:
        """`digest`: of the conversation up to and with `answer`."""
        self._answers.setdefault(digest, []).append((node, _call_ids(answer)))

    def find(self, digest: Digest, messages: Sequence[Message], named: Node | None = None) -> Node | None:
        """The answer that the last of `messages` is, from which a turn may follow. Of several that read alike the
        `named` one, else the one whose calls have the same ids, else whose conversation has most of the thoughts that
        were sent back, else one that was delivered, else the newest."""
        known = [(node, ids) for node, ids in self._answers.get(digest, ()) if node.can_go_on]
        if len(known) < 2:
            return known[0][0] if known else None
        wanted, thoughts = _call_ids(messages[-1]), [_thought(message) for message in messages]

        def likeness(one: tuple[Node, tuple[str, ...]]) -> tuple[bool, bool, int, bool, int]:
            node, ids = one
            same = _same_thoughts(thoughts, node.messages or ())
            return node is named, ids == wanted, same, node.delivered, node.number

        return max(known, key=likeness)[0]


def digests(messages: Sequence[Message], tools: Sequence[Tool] | None, variables: Mapping[str, Any]) -> list[Digest]:
    """Of each beginning of the conversation, the empty one first. `tools` and the template's `variables` are part of
    all: they stand before the messages."""
    found = [_digest(b"", [tools, dict(variables)])]
    for message in messages:
        found.append(digest_after(found[-1], message))
    return found


def digest_after(before: Digest, message: Message) -> Digest:
    """Of the conversation of that digest with `message` after it."""
    return _digest(before, _compared(message))


def _digest(before: Digest, value: Any) -> Digest:
    if isinstance(value, dict) and all(type(each) is str for each in value.values()):
        # No JSON, sooner made, and of no other message.
        text = "".join([f"{len(part)} {part}" for item in sorted(value.items()) for part in item])
    else:
        text = _JSON.encode(value)
    return hashlib.blake2b(before + text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _compared(message: Message) -> Message:
    if message["role"] != "assistant":
        return {name: value for name, value in message.items() if name not in _NOT_SAID}
    # Clients add keys of their own to what they send back, or drop some: `refusal`, `provider_specific_fields`.
    calls = [call["function"] for call in message.get("tool_calls", ())]
    compared = [[call["name"], _as_doubles(call["arguments"])] for call in calls]
    return {"role": "assistant", "content": message["content"], "calls": compared}


def _as_doubles(value: Any) -> Any:
    """`value` of JSON, its numbers as a client has them that reads and writes them again in JavaScript: all are floats
    of 64 bits (IEEE 754), so 1 and 1.0 are one number, and so are 2**53 and 2**53 + 1."""
    match value:
        case dict():
            return {name: _as_doubles(each) for name, each in value.items()}
        case list():
            return [_as_doubles(each) for each in value]
        case int() if not isinstance(value, bool) and abs(value) < _TOO_LARGE:
            return float(value)
        case float() if value == 0:
            return 0.0  # and not -0.0, which JavaScript writes as 0
    return value


def _same_thoughts(sent: Sequence[str], messages: Sequence[Message]) -> int:
    """How many of the thoughts that were `sent` back are those of the messages. One that was not says nothing."""
    return sum(bool(thought) and thought == _thought(own) for thought, own in zip(sent, messages, strict=False))


def _thought(message: Message) -> str:
    """Of an assistant's message, by whichever of its names a client sends; empty if there is none."""
    if message["role"] != "assistant":
        return ""
    return next(filter(None, (_text_of(message.get(name)).strip() for name in _REASONING)), "")


def _text_of(value: Any) -> str:
    """Of a thought, or of blocks of one."""
    blocks = value if isinstance(value, list) else [value]
    texts = [each.get("thinking", each.get("text")) if isinstance(each, Mapping) else each for each in blocks]
    return "".join(text for text in texts if isinstance(text, str))


def _call_ids(message: Message) -> tuple[str, ...]:
    return tuple(str(call.get("id")) for call in message.get("tool_calls", ()))
