"""Which answer a prompt of text goes on from: by what was sent, and what the API returned to that."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from headrace.gateway.agents.token_tree import Node


@dataclass(frozen=True, slots=True)
class _KnownText:
    """That of a prompt, and of an answer to it."""

    node: Node
    prompt: str
    returned: str
    stop: str
    """That ended the answer; empty if none did."""
    beyond: str
    """What was sampled and not returned: begins with `stop`."""

    @property
    def length(self) -> int:
        """Characters that the agent knows."""
        return len(self.prompt) + len(self.returned)

    def begins(self, text: str) -> bool:
        """Whether more comes behind it there. What returned nothing is no part of any text."""
        is_known = bool(self.returned) and text.startswith(self.prompt)
        return is_known and len(text) > self.length and text.startswith(self.returned, len(self.prompt))

    def rest(self, text: str) -> str:
        """Of a text that begins with it, what the policy has not seen. The agent writes a text that ended an answer
        itself, or leaves it out; in the history it is once, as it was sampled."""
        rest = text[self.length :]
        if not self.stop or not rest.startswith(self.stop):
            return rest
        agree = takewhile(lambda pair: pair[0] == pair[1], zip(rest, self.beyond, strict=False))
        return rest[len(list(agree)) :]


class KnownTexts:
    """Answers to prompts of text."""

    def __init__(self) -> None:
        self._known: list[_KnownText] = []

    def remember(self, node: Node, prompt: str, returned: str, stop: str = "", beyond: str = "") -> None:
        """`node`: the answer to `prompt` of which `returned` went out. Where a text of the client's has ended it, that
        is `stop`, with which `beyond` begins, all that was sampled behind `returned`."""
        self._known.append(_KnownText(node, prompt, returned, stop, beyond))

    def find(self, text: str) -> tuple[Node, str] | None:
        """The answer that `text` goes on from, with what it adds: the one with the longest text that it begins with;
        of several one that was delivered, else the newest."""
        begin = [known for known in self._known if known.node.can_go_on and known.begins(text)]
        if not begin:
            return None
        best = max(begin, key=lambda known: (known.length, known.node.delivered, known.node.number))
        return best.node, best.rest(text)
