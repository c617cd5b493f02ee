"""The pane of the live view that shows the latest rollouts: of each the end of its prompt, its response, its reward.

What a model wrote is not to be trusted. Nothing of it steers the terminal, and every character takes as many cells as
is reckoned with here, in whichever terminal: what could take more or fewer, as joined emoji do, is replaced.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from rich.cells import get_character_cell_size
from rich.panel import Panel
from rich.text import Text

from headrace.observe.glyphs import decimal
from headrace.observe.untrusted import visible
from headrace.store.rollouts import Rollout
from headrace.viewer.terminal.panels import panel

LINES_EACH = 2
MOST = 4
"""Rollouts that are shown where there is room."""
_LONGEST = 4_000
"""Characters of a text, at each of its ends, that are looked at."""
_BREAKS = {"\n": "␊", "\t": "␉"}
_UNSURE, _MARK = "□", "◌"
"""In the place of a character whose width terminals do not agree on, and of a mark that sits on another character."""
_JOINERS = "\u200c\u200d"
_MODIFIERS = range(0x1F3FB, 0x1F400)
_FLAGS = range(0x1F1E6, 0x1F200)

Cell = tuple[str, int]
"""A character, with the mark on it, and how many cells it takes."""


def latest(rollouts: Sequence[Rollout], width: int, height: int, nothing: str = "") -> Panel:
    """`height` lines, two of them borders. `nothing`: what is said where there is none."""
    lines: list[Text] = []
    for rollout in rollouts[: max((height - 2) // LINES_EACH, 0)]:
        lines += _lines(rollout, width - 4)
    if not lines:
        lines.append(Text(nothing, "dim"))
    return panel(*lines, title=Text("latest rollouts"), height=height)


def one_line(text: str, cells: int, *, begins: bool) -> str:
    """The end of `text` in so many cells at most; with `begins` also its beginning, if not all of it fits."""
    cut = text if len(text) <= 2 * _LONGEST else text[:_LONGEST] + text[-_LONGEST:]
    found = _cells(cut.strip())
    if sum(size for _, size in found) <= cells:
        return "".join(character for character, _ in found)
    room = max(cells - 1, 0)
    first = _upto(found, room // 3) if begins else []
    last = _upto(found[::-1], room - sum(size for _, size in first))[::-1]
    return "".join(character for character, _ in [*first, ("…", 1), *last])


def _lines(rollout: Rollout, width: int) -> list[Text]:
    """Each begins with a word in Latin letters: terminals that lay text out from right to left go by the first letter
    of a line."""
    given = "".join(turn.text for turn in rollout.turns[:1] if not turn.by_policy)
    written = "".join(turn.text for turn in rollout.turns[1 if given else 0 :])
    head = Text.assemble(("reward ", "dim"), (decimal(rollout.reward).rjust(6), "bold"), f"  batch {rollout.batch}  ")
    if rollout.status != "completed":
        head.append(one_line(rollout.status, 12, begins=False), "yellow").append("  ")
    head.append("prompt ", "dim").append(one_line(given, max(width - head.cell_len - 7, 1), begins=False), "cyan")
    answer = Text.assemble(("answer ", "dim"), one_line(written, max(width - 7, 1), begins=True))
    return [head, answer]


def _cells(text: str) -> list[Cell]:
    found: list[Cell] = []
    for character in unicodedata.normalize("NFC", visible(text)):
        shown = _BREAKS.get(character, character)
        if character in _JOINERS:
            found += [(letter, 1) for letter in f"<U+{ord(character):04X}>"]
        elif unicodedata.category(shown) in ("Mn", "Me"):
            if found and len(found[-1][0]) == 1 and found[-1][0].isalpha() and get_character_cell_size(shown) == 0:
                found[-1] = (found[-1][0] + shown, found[-1][1])
            else:
                found.append((_MARK, 1))
        elif unicodedata.category(shown) == "Mc":
            found.append((_MARK, 1))
        else:
            found.append((shown, size) if (size := _size(shown)) else (_UNSURE, 1))
    return found


def _size(character: str) -> int:
    """Cells that the character takes; 0 where that is not sure."""
    if ord(character) in _MODIFIERS or ord(character) in _FLAGS:
        return 0
    size = 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
    return size if get_character_cell_size(character) == size else 0


def _upto(found: Sequence[Cell], cells: int) -> list[Cell]:
    taken: list[Cell] = []
    for cell in found:
        cells -= cell[1]
        if cells < 0:
            break
        taken.append(cell)
    return taken
