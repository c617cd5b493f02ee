"""Which parts of a rendered conversation enter the loss: what chosen roles said.

Invariant: the parts joined are the conversation as its template renders it, to the letter.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.messages import Message, Tool

LossTurns = Literal["all", "last", "split"]
_ASSISTANT = "assistant"


class Part(NamedTuple):
    text: str
    in_loss: bool


def conversation_parts(
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    roles: Collection[str],
    turns: LossTurns,
) -> list[list[Part]]:
    """The samples that a conversation makes, each as its parts in order: one, or one for each turn if they are `split`.

    A turn of the assistant begins after the template's generation prompt, as where the model would write it; one of
    another role begins with its header. What comes after the last turn in the loss is left out.

    Raises ValueError with the mend, if nobody of `roles` says anything, or the template does not show where turns begin
    and end.
    """
    chosen = [place for place, message in enumerate(messages) if message["role"] in roles]
    if not chosen:
        said = ", ".join(dict.fromkeys(message["role"] for message in messages))
        raise ValueError(f"nobody of loss_roles ({', '.join(roles)}) says anything, only {said}; correct either")
    if turns == "split":
        return [_parts(template, messages[: place + 1], tools, [place], roles) for place in chosen]
    if turns == "last":
        chosen = chosen[-1:]
    return [_parts(template, messages[: chosen[-1] + 1], tools, chosen, roles)]


def _parts(
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    chosen: Sequence[int],
    roles: Collection[str],
) -> list[Part]:
    if set(roles) == {_ASSISTANT} and template.marks_assistant:
        text, marked = template.render_marked(messages, tools)
        spans = _marked_turns(messages, marked, chosen)
    else:
        text = template.render(messages, tools, asks=False)
        spans = [_span(template, text, messages, tools, place) for place in chosen]
    parts, end = [], 0
    for begin, stop in spans:
        parts += [Part(text[end:begin], False), Part(text[begin:stop], True)]
        end = stop
    return [part for part in [*parts, Part(text[end:], False)] if part.text]


def _marked_turns(
    messages: Sequence[Message], marked: Sequence[tuple[int, int]], chosen: Sequence[int]
) -> list[tuple[int, int]]:
    """Of what `{% generation %}` marks, that of the turns `chosen`."""
    of_assistant = [place for place, message in enumerate(messages) if message["role"] == _ASSISTANT]
    if list(chosen) == of_assistant and marked:
        return list(marked)
    if len(marked) != len(of_assistant):
        raise ValueError(
            f"the chat template marks {len(marked)} parts as the assistant's ({{% generation %}}), which has "
            f"{len(of_assistant)} turns; let it mark each turn once"
        )
    return [marked[of_assistant.index(place)] for place in chosen]


def _span(
    template: ChatTemplate, text: str, messages: Sequence[Message], tools: Sequence[Tool] | None, place: int
) -> tuple[int, int]:
    """Where the turn at `place` begins and ends in `text`, found by rendering what comes before, and what goes up to
    its end."""
    asks = messages[place]["role"] == _ASSISTANT
    before = template.render(messages[:place], tools, asks=asks) if place else ""
    upto = text if place == len(messages) - 1 else template.render(messages[: place + 1], tools, asks=False)
    if not (text.startswith(before) and text.startswith(upto) and len(before) <= len(upto)):
        who = f"message {place + 1} ({messages[place]['role']})"
        marks = "give a template that marks the assistant's words with {% generation %} (data.template.file)"
        if place == len(messages) - 1:
            raise ValueError(
                f"what the chat template asks for {who} with is not how it renders that, so what is in the loss cannot "
                f"be told; correct data.template.kwargs, or {marks}"
            )
        raise ValueError(
            f"the chat template renders {who} otherwise when more follows, so what is in the loss cannot be told; set "
            "loss_turns to split (a sample for each turn, as the model reads it when it writes that turn) or to last, "
            f"or {marks}"
        )
    return len(before), len(upto)
