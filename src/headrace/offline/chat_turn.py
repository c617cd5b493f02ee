"""How a chat template writes a turn of the assistant, for responses that stand apart from their chat."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.messages import Message

_WORDS = "\x02words\x03"


class ChatTurn(NamedTuple):
    end_token_id: int
    """That closes it."""
    opening: str = ""
    """White space that the template writes before the words, as Llama 2's and Mistral's do."""

    def opened(self, response: str) -> str:
        return response if response.startswith(self.opening) else self.opening + response


def chat_turn(template: ChatTemplate, stop_token_ids: Collection[int], end_token_id: int) -> ChatTurn:
    """As `template` writes it; `end_token_id` closes it where the template puts none of `stop_token_ids` behind the
    words, or refuses to show."""
    asked: list[Message] = [{"role": "user", "content": "-"}]
    try:
        prompt = template.render(asked)
        whole = template.render([*asked, {"role": "assistant", "content": _WORDS}], asks=False)
    except ValueError:
        return ChatTurn(end_token_id)
    before, _, after = whole.partition(_WORDS)
    behind = template.tokenizer(after, add_special_tokens=False)["input_ids"]
    end = next((token for token in behind if token in stop_token_ids), end_token_id)
    opening = before.removeprefix(prompt) if before.startswith(prompt) else ""
    return ChatTurn(end, opening if opening.isspace() else "")
