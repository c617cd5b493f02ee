"""What a chat template puts between the end of the policy's words and its next turn."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.experience.text.append_only import ASKED, TOOL
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.messages import Message, Tool

POLICY_TURN = "\x02policy\x03"
"""Stands for what the policy wrote while the template renders what comes after it."""
_MARK: Message = {"role": "assistant", "content": POLICY_TURN}
_ROUNDS = 2
"""Of tools in a conversation that is tried: some templates, as DeepSeek R1's, show the second result otherwise."""


def text_after(
    template: ChatTemplate,
    messages: Sequence[Message],
    place: int,
    tools: Sequence[Tool] | None,
    *,
    by_difference: bool = False,
) -> str:
    """The text after the policy's words in `messages[place]`: found by a mark in their place, or where the template
    refuses that (a tool's message wants the call that it answers), or `by_difference` is to be first, by what more
    messages add. Raises ValueError if the template refuses them, or does not show what the assistant said."""
    if by_difference and (found := _by_difference(template, messages, place, tools)) is not None:
        return found
    try:
        rendered = template.render([*messages[:place], _MARK, *messages[place + 1 :]], tools)
    except ValueError:
        if by_difference or (found := _by_difference(template, messages, place, tools)) is None:
            raise
        return found
    return _behind_mark(rendered)


def looks_at_calls(template: ChatTemplate) -> bool:
    """Whether what it puts after a call of a tool depends on the call, where both ways can be tried."""
    messages: list[Message] = [ASKED]
    for number in range(_ROUNDS):
        name = f"c0000000{number}"  # of nine letters and digits: Mistral's templates refuse all else
        function = {"name": TOOL["function"]["name"], "arguments": {"key": str(number)}}
        call = {"id": name, "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": str(number), "tool_call_id": name},
        ]
    try:
        for place in range(1, len(messages), 2):
            found = _by_difference(template, messages, place, [TOOL])
            if found is not None and found != text_after(template, messages, place, [TOOL]):
                return True
    except ValueError:  # it takes no such messages, which who sends them is told
        pass
    return False


def _by_difference(
    template: ChatTemplate, messages: Sequence[Message], place: int, tools: Sequence[Tool] | None
) -> str | None:
    """What closes a turn, and then what more messages add. None where the template renders the turn otherwise once
    they follow."""
    before, whole = template.render(messages[: place + 1], tools, asks=False), template.render(messages, tools)
    if not whole.startswith(before):
        return None
    opening: list[Message] = [{"role": "user", "content": "-"}]
    return _behind_mark(template.render([*opening, _MARK], tools, asks=False) + whole[len(before) :])


def _behind_mark(rendered: str) -> str:
    _, found, after = rendered.partition(POLICY_TURN)
    if not found:
        raise ValueError("the chat template does not show an assistant's message; environments need one that does")
    return after
