"""Stop strings, cut exactly, however the text is cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on up to the first stop string to end; holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, piece: str) -> tuple[str, bool]:
        """(text to pass on, whether a stop string ended it)."""
        text = self._held + piece
        # The match that ends first wins, so that the cut is the same when the text comes letter by letter.
        matches = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if matches:
            self._held = ""
            return text[: min(matches)[1]], True
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False

    def flush(self) -> str:
        """What was held back, when no more comes."""
        held, self._held = self._held, ""
        return held


def first_place(text: str, marks: Sequence[str]) -> int:
    """Where in `text`, which may go on, the first of `marks` begins, or may begin; its length if none does."""
    places = (found if (found := text.find(mark)) >= 0 else len(text) - _overlap(text, mark) for mark in marks)
    return min(places, default=len(text))


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins."""
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
