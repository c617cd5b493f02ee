"""What an agent's request was answered with: the JSON of OpenAI's chats and completions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.engines.completions import Completion
from headrace.experience.text.messages import Message
from headrace.experience.text.token_texts import ShownToken
from headrace.gateway.agents.so_far import SoFar
from headrace.gateway.agents.token_tree import Node
from headrace.gateway.responses import ChatShape, CompletionShape, Envelope, usage


@dataclass(frozen=True, slots=True)
class Choice:
    completion: Completion
    message: Message
    """`content`, and perhaps `reasoning_content` and `tool_calls`, whose arguments are objects."""
    finish_reason: str
    """`stop`, `length` or `tool_calls`: of what a limit cut off `length`, also where there are calls in it."""
    tokens: tuple[ShownToken, ...] = ()
    """Where log-probs were asked for."""
    stopped_by: str | None = None
    """The text of the client's that ended it."""
    beyond: str = ""
    """What was sampled from that text on, and is not returned."""

    @property
    def so_far(self) -> SoFar:
        return SoFar(self.message, self.tokens, self.finish_reason)


@dataclass(frozen=True, slots=True)
class Answered:
    """To one request."""

    number: int
    created: int
    """Seconds since the epoch."""
    model: str
    prompt_tokens: int
    choices: list[Choice] = field(default_factory=list)
    """Empty until all have ended."""
    nodes: list[Node] = field(default_factory=list)
    """Those of the choices."""

    @property
    def usage(self) -> dict[str, int]:
        return usage(self.prompt_tokens, sum(len(choice.completion.tokens) for choice in self.choices))

    def delivered(self) -> None:
        """The agent has it: it may be trained."""
        for node in self.nodes:
            node.delivered = True

    def envelope(self, shape: ChatShape | CompletionShape) -> Envelope:
        return Envelope(shape, self.number, self.created, self.model)


def whole_chat(answered: Answered) -> dict[str, Any]:
    choices = [
        {
            "index": index,
            "message": _message(choice.message),
            "logprobs": chat_logprobs(choice.tokens),
            "finish_reason": choice.finish_reason,
        }
        for index, choice in enumerate(answered.choices)
    ]
    return answered.envelope(ChatShape()).whole(choices, answered.usage)


def whole_text(answered: Answered) -> dict[str, Any]:
    choices = [
        {
            "index": index,
            "text": choice.message["content"],
            "logprobs": text_logprobs(choice.tokens),
            "finish_reason": choice.finish_reason,
        }
        for index, choice in enumerate(answered.choices)
    ]
    return answered.envelope(CompletionShape()).whole(choices, answered.usage)


def _message(message: Message) -> dict[str, Any]:
    """As OpenAI has it: content null beside calls, arguments as text."""
    calls = openai_calls(message.get("tool_calls", ()))
    content = message["content"] or (None if calls else "")
    return {**message, "content": content, **({"tool_calls": calls} if calls else {})}


def openai_calls(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls of a message, their arguments as text."""
    return [
        {
            "id": call["id"],
            "type": "function",
            "function": {
                "name": call["function"]["name"],
                "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
            },
        }
        for call in calls
    ]


def chat_logprobs(tokens: Sequence[ShownToken]) -> dict[str, Any] | None:
    """Of some tokens; None of none."""
    return {"content": token_logprobs(tokens)} if tokens else None


def token_logprobs(tokens: Sequence[ShownToken]) -> list[dict[str, Any]]:
    """An entry for each token."""
    return [
        {"token": each.text, "logprob": each.logprob, "bytes": list(each.data), "top_logprobs": []} for each in tokens
    ]


def text_logprobs(tokens: Sequence[ShownToken], offset: int = 0) -> dict[str, Any] | None:
    """Of some tokens, before which there are `offset` characters; None of none."""
    if not tokens:
        return None
    offsets = [offset]
    for each in tokens[:-1]:
        offsets.append(offsets[-1] + each.length)
    texts, values = [each.text for each in tokens], [each.logprob for each in tokens]
    return {"tokens": texts, "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}
