"""Which answer a conversation goes on from: messages are matched by what the API returned."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.experience.text.messages import Message, Tool
from headrace.gateway.agents.token_tree import Node

_REASONING = ("reasoning_content", "reasoning", "thinking", "thinking_blocks")
"""Keys of no meaning in what others say."""

Digest = bytes


class KnownTurns:
    """Answers by the conversation that they end."""

    def __init__(self) -> None:
        self._answers: dict[Digest, list[tuple[Node, tuple[str, ...]]]] = {}

    def remember(self, digest: Digest, node: Node, answer: Message) -> None:
        """`digest`: of the conversation up to and with `answer`."""
        self._answers.setdefault(digest, []).append((node, _call_ids(answer)))

    def find(self, digest: Digest, message: Message) -> Node | None:
        """The answer that `message` is, from which a turn may follow. Of several that read alike the one whose calls
        have the same ids, else one that was delivered, else the newest."""
        known = [(node, ids) for node, ids in self._answers.get(digest, ()) if node.can_go_on]
        wanted = _call_ids(message)
        return max(known, key=lambda one: (one[1] == wanted, one[0].delivered, one[0].number), default=(None,))[0]


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
        text = repr(sorted(value.items()))  # no JSON, and sooner made
    else:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(before + text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _compared(message: Message) -> Message:
    if message["role"] != "assistant":
        return {name: value for name, value in message.items() if name not in _REASONING}
    # Clients add keys of their own to what they send back, or drop some: `refusal`, `provider_specific_fields`.
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", ())]
    return {"role": "assistant", "content": message["content"], "calls": calls}


def _call_ids(message: Message) -> tuple[str, ...]:
    return tuple(str(call.get("id")) for call in message.get("tool_calls", ()))
