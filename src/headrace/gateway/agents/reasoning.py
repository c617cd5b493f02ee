"""A thought apart from the answer, where a chat template shows them apart."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.stops import first_place

OPEN, CLOSE = "<think>", "</think>"


def template_text(template: ChatTemplate) -> str:
    """The source of all parts of the template; empty if there is none."""
    source = template.tokenizer.chat_template
    return "\n".join(source.values()) if isinstance(source, Mapping) else source or ""


def shows_reasoning(template: ChatTemplate) -> bool:
    """Whether it reads a message's `reasoning_content`."""
    return "reasoning_content" in template_text(template)


def begins_thought(prompt_end: str) -> bool:
    """Whether the end of what the policy was asked with has begun the thought for it."""
    return prompt_end.rstrip().endswith(OPEN)


def split_reasoning(text: str, *, begun: bool) -> tuple[str | None, str]:
    """(thought, answer); no thought is None. `begun`: the prompt has begun it."""
    if not begun and not text.lstrip().startswith(OPEN):
        return None, text
    thought, closed, answer = text.partition(CLOSE)
    if not closed:
        answer = ""
    return thought.lstrip().removeprefix(OPEN).strip("\n"), answer.lstrip("\n")


class ThoughtSplitter:
    """`split_reasoning` of a text that comes in pieces: what it gives, put together, is the beginning of both parts."""

    def __init__(self, *, begun: bool) -> None:
        self.has_thought = begun
        self.is_known = False
        """Whether there is a thought, and where it begins."""
        self._is_closed = False
        self._lines = ""
        """What is not said while nothing else was: the line ends at the beginning of a part."""
        self._held = ""

    @property
    def is_open(self) -> bool:
        """Whether the thought goes on."""
        return self.has_thought and not self._is_closed

    def push(self, piece: str) -> tuple[str, str]:
        """(more of the thought, more of the answer)."""
        self._held += piece
        if not self.is_known and not self._begin():
            return "", ""
        thought = "" if self._is_closed else self._more_thought()
        answer = ""
        if self._is_closed:
            answer, self._held = self._led(self._held), ""
        return thought, answer

    def _begin(self) -> bool:
        head = self._held.lstrip()
        if OPEN.startswith(head):
            return False
        self.is_known = True
        self.has_thought = self.has_thought or head.startswith(OPEN)
        if self.has_thought:
            self._held, self._lines = head.removeprefix(OPEN), "\n"
        else:
            self._is_closed = True
        return True

    def _more_thought(self) -> str:
        place = first_place(self._held, (CLOSE,))
        self._is_closed = self._held.startswith(CLOSE, place)
        thought = self._held[:place].rstrip("\n")
        self._held = self._held[place + len(CLOSE) if self._is_closed else len(thought) :]
        thought = self._led(thought)
        if self._is_closed:
            self._lines = "\n"
        return thought

    def _led(self, text: str) -> str:
        """Without line ends at the beginning of its part."""
        text = text.lstrip(self._lines)
        if text:
            self._lines = ""
        return text
