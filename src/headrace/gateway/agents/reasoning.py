"""A thought apart from the answer, where a chat template shows them apart."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.experience.text.chat_template import ChatTemplate

_OPEN, _CLOSE = "<think>", "</think>"


def template_text(template: ChatTemplate) -> str:
    """The source of all parts of the template; empty if there is none."""
    source = template.tokenizer.chat_template
    return "\n".join(source.values()) if isinstance(source, Mapping) else source or ""


def shows_reasoning(template: ChatTemplate) -> bool:
    """Whether it reads a message's `reasoning_content`."""
    return "reasoning_content" in template_text(template)


def split_reasoning(text: str, prompt_end: str) -> tuple[str | None, str]:
    """(thought, answer); no thought is None. `prompt_end`: the end of what the policy was asked with, which may have
    begun the thought for it."""
    begun = prompt_end.rstrip().endswith(_OPEN)
    if not begun and not text.lstrip().startswith(_OPEN):
        return None, text
    thought, closed, answer = text.partition(_CLOSE)
    if not closed:
        answer = ""
    return thought.lstrip().removeprefix(_OPEN).strip("\n"), answer.lstrip("\n")
