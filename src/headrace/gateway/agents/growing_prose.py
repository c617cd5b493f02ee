"""A growing answer that the model's renderer reads: what is prose to whoever reads it.

The package `renderers` reads whole answers, each family of models in its own way; an answer with a call that is none,
or with a text of the client's in it, is read otherwise. Prose is what all these agree on: plain words, in a thought or
behind it. All else waits for the whole: from the first token that may mean more than it says, or from where a part
begins with a space or a bracket.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.experience.text.stops import first_place
from headrace.gateway.agents.growing import GrowingAnswer
from headrace.gateway.agents.model_renderer import AnswerReader, UnreadAnswer
from headrace.gateway.agents.parsed_text import ParsedText
from headrace.gateway.agents.reading import Reading
from headrace.gateway.agents.reasoning import CLOSE, OPEN, ThoughtSplitter

_WORD = "a"
_BRACKETS = "{[<"
"""Calls of some families are text that begins so."""


def growing_answer(reading: Reading, *, logprobs: bool) -> GrowingAnswer:
    """One that is read as `reading` says."""
    if reading.by_renderer is None:
        return GrowingAnswer(reading, logprobs=logprobs)
    return GrowingProse(reading, reading.by_renderer, logprobs=logprobs)


class GrowingProse(GrowingAnswer):
    """See `GrowingAnswer`."""

    def __init__(self, reading: Reading, by_renderer: AnswerReader, *, logprobs: bool) -> None:
        super().__init__(reading, logprobs=logprobs)
        self._prose = self._splitter = ThoughtSplitter(begun=reading.begun)
        self._marks = by_renderer.marks
        self._is_atomic = OPEN in self._marks.values()
        """Whether only tokens begin and end a thought, and not text that looks like them."""
        self._by_mark = False
        self._tail = ""
        """Of the plain text before."""
        self._thought, self._text = _Part(reading.marks), _Part(reading.marks)
        self._by_renderer = by_renderer
        self._state: tuple[bool, bool] | None = None
        """Whether there is a thought, and it goes on; None before anything was said."""
        self._waits = by_renderer.has_channels
        """Whether all else waits for the whole."""

    def _push(self, ids: list[int]) -> None:
        plain: list[int] = []
        for token in ids:
            mark = self._marks.get(token)
            if mark is None:
                plain.append(token)
                continue
            self._pass(plain)
            plain = []
            begins = mark == OPEN and not self._prose.is_known
            if begins or (mark == CLOSE and self._prose.is_open):
                self._by_mark = True
                self._pass([token])
                self._by_mark = False
            else:
                self._waits = True
        self._pass(plain)

    def _pass(self, ids: list[int]) -> None:
        if ids and not self._waits:
            super()._push(ids)

    def _hear(self, said: str) -> None:
        if self._by_mark:
            self._waits = said not in (OPEN, CLOSE)  # with text before it that was held back
        elif self._is_atomic:
            text = self._tail + said
            self._waits = OPEN in text or CLOSE in text
            self._tail = text[1 - len(CLOSE) :]
        if not self._waits:
            super()._hear(said)

    def _say(self, thought: str, text: str) -> None:
        state = (self._prose.has_thought, self._prose.is_open)
        if self._prose.is_known and state != self._state:
            self._state = state
            self._waits = not self._is_agreed(*state)
        if self._waits:
            return
        said = self._thought.push(thought)
        if self._thought.held and not self._prose.is_open:
            self._waits = True  # spaces at its end, which some leave out
        self._waits = self._waits or self._thought.is_over
        more = "" if self._waits else self._text.push(text)
        self._waits = self._waits or self._text.is_over
        super()._say(said, more)

    def _is_agreed(self, has_thought: bool, is_open: bool) -> bool:
        """Whether the renderer takes words that come now for what they are here: it may know no thoughts, or by other
        marks, begin one by itself, or once more behind what was said."""
        begin = OPEN if has_thought and not self._reading.begun else ""
        if is_open:
            return self._reads(begin + _WORD, ParsedText("", (), _WORD))
        before, thought = (begin + _WORD + CLOSE, _WORD) if has_thought else ("", None)
        said = f"{_WORD}{OPEN}{_WORD}"
        return self._reads(before + _WORD, ParsedText(_WORD, (), thought)) and self._reads(
            before + said, ParsedText(said, (), thought)
        )

    def _reads(self, text: str, wanted: ParsedText) -> bool:
        try:
            return self._by_renderer.read(self._reading.text.encode_text(text)) == wanted
        except UnreadAnswer:
            return False


class _Part:
    """A thought, or the text behind it, up to where readers may differ."""

    def __init__(self, marks: Sequence[str]) -> None:
        self.held = ""
        self._marks = (OPEN, CLOSE, *marks)
        self.is_over = False
        self._has_begun = False

    def push(self, piece: str) -> str:
        """What is certain of it, and of what was held back."""
        text = self.held + piece
        if text and not self._has_begun:
            self._has_begun = True
            self.is_over = text[0].isspace() or text[0] in _BRACKETS
        if self.is_over:
            return ""
        place = first_place(text, self._marks)
        self.is_over = text.startswith(self._marks, place)
        sure = text[:place].rstrip()
        self.held = text[len(sure) :]
        return sure
