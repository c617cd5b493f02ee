"""Texts of special tokens, which are read but not said."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.experience.text.stops import first_place


class LeftOut:
    """Passes a text on without `marks`, however it is cut into pieces; holds back what may be the beginning of one."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = sorted(marks, key=len)  # of two that begin alike the one that is whole first
        self._held = ""

    def push(self, piece: str) -> str:
        text, said = self._held + piece, ""
        while True:
            place = first_place(text, self._marks)
            said, text = said + text[:place], text[place:]
            mark = next((each for each in self._marks if text.startswith(each)), None)
            if mark is None:
                self._held = text
                return said
            text = text[len(mark) :]

    def flush(self) -> str:
        """What was held back, when no more comes."""
        held, self._held = self._held, ""
        return held


def left_out(text: str, marks: Sequence[str]) -> str:
    """All of `text` without `marks`."""
    rest = LeftOut(marks)
    return rest.push(text) + rest.flush()
