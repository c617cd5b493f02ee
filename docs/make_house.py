"""Draws docs/figures/house.svg, the rooms by floor, and docs/figures/way.svg, the way of a sample: `python
docs/make_house.py`. Floors are the layers that import-linter holds (pyproject.toml), what is said of a room is the
first sentence of its docstring."""

from __future__ import annotations

import ast
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
WIDTH, MARGIN, GAP = 980, 16, 8
FONT = "font-family='ui-sans-serif, system-ui, sans-serif'"
INK, PALE, LINE, FILL = "#1f2933", "#52606d", "#9aa5b1", "#f5f7fa"
EXPERIENCE, WEIGHTS, CONTROL = "#2f6f9f", "#b4552d", "#7b8794"


def floors() -> list[list[str]]:
    """The rooms, the top floor first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["type"] == "layers")
    return [[room.strip().removeprefix("headrace.") for room in layer.split("|")] for layer in layers]


def said(room: str) -> str:
    """The first sentence of its docstring."""
    text = ast.get_docstring(ast.parse((ROOT / "src" / "headrace" / room / "__init__.py").read_text())) or ""
    return " ".join(text.split("\n\n")[0].split()).split(". ")[0].rstrip(".").replace("`", "")


def svg(height: int, parts: list[str]) -> str:
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}'>"
    return "\n".join([head, f"<rect width='{WIDTH}' height='{height}' fill='white'/>", *parts, "</svg>", ""])


def box(x: float, y: float, width: float, height: float, title: str) -> list[str]:
    place = f"x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}'"
    return [
        f"<rect {place} rx='4' fill='{FILL}' stroke='{LINE}'/>",
        f"<text x='{x + 10:g}' y='{y + 19:g}' {FONT} font-size='14' font-weight='600' fill='{INK}'>{title}</text>",
    ]


def lines(words: list[str], x: float, y: float, *, size: int = 12, color: str = INK, anchor: str = "start") -> str:
    steps = [0, *[size + 3] * (len(words) - 1)]
    spans = "".join(f"<tspan x='{x:g}' dy='{dy}'>{escape(one)}</tspan>" for one, dy in zip(words, steps, strict=True))
    return f"<text x='{x:g}' y='{y:g}' {FONT} font-size='{size}' fill='{color}' text-anchor='{anchor}'>{spans}</text>"


def house() -> str:
    """Each floor a row, each room a box."""
    parts, y = [], MARGIN
    for number, rooms in zip(range(len(floors()) - 1, -1, -1), floors(), strict=True):
        width = (WIDTH - 2 * MARGIN - 30 - GAP * (len(rooms) - 1)) / len(rooms)
        wrapped = {room: textwrap.wrap(said(room), int(width / 7.2)) for room in rooms}
        height = 30 + 15 * max(map(len, wrapped.values()))
        parts.append(lines([str(number)], MARGIN + 8, y + height / 2 + 4, color=PALE, anchor="middle"))
        for place, room in enumerate(rooms):
            x = MARGIN + 30 + place * (width + GAP)
            parts += box(x, y, width, height, f"{room}/")
            parts.append(lines(wrapped[room], x + 10, y + 36, color=PALE))
        y += height + GAP
    return svg(y + MARGIN - GAP, parts)


@dataclass(frozen=True)
class Station:
    """A box on the way of a sample."""

    x: int
    y: int
    title: str
    words: str
    width: int = 200

    @property
    def wrapped(self) -> list[str]:
        return textwrap.wrap(self.words, int(self.width / 7.2))

    @property
    def height(self) -> int:
        return 30 + 15 * len(self.wrapped)

    def drawn(self) -> list[str]:
        title = box(self.x, self.y, self.width, self.height, self.title)
        return [*title, lines(self.wrapped, self.x + 10, self.y + 36, color=PALE)]


def arrow(
    points: list[tuple[float, float]], color: str, label: str = "", at: tuple[float, float] | None = None
) -> list[str]:
    (x0, y0), (x1, y1) = points[-2:]
    way = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
    dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
    left, right = (x1 - 8 * dx - 4 * dy, y1 - 8 * dy + 4 * dx), (x1 - 8 * dx + 4 * dy, y1 - 8 * dy - 4 * dx)
    head = f"<path d='M{x1:g} {y1:g} L{left[0]:g} {left[1]:g} L{right[0]:g} {right[1]:g} Z' fill='{color}'/>"
    drawn = [f"<path d='{way}' fill='none' stroke='{color}' stroke-width='2'/>", head]
    return drawn + ([lines([label], *at, color=color, size=11)] if label and at else [])


def way() -> str:
    """Experience goes forward, weights go back, control opens and closes gates."""
    prompts = Station(20, 40, "prompts", "experience/sources: rows by number, in an order that the ledger has")
    schedule = Station(
        270,
        40,
        "schedule",
        "may this group start now, and in which batch is it due? The bound on staleness is held here",
    )
    rollout = Station(520, 40, "rollout", "a workflow plays the group's episodes, and a reward scores each as it ends")
    engines = Station(760, 40, "engine pool", "token ids in, token ids out; each token with its log-prob and version")
    journal = Station(
        520,
        200,
        "journal and ledger",
        "the finished group is on disk before anybody hears of it: the receipt says where",
    )
    table = Station(
        270,
        200,
        "experience table",
        "rows are headers and refs; a row is ready for whoever reads once its columns are there",
    )
    columns = Station(
        20,
        200,
        "filter, scores, advantages",
        "keep or drop; reference, proximal, values, reward model; then the advantage",
        220,
    )
    actor = Station(
        270, 360, "actor and critic", "micro-batches of batch k as its rows get ready; both step together, at its end"
    )
    plane = Station(
        640, 360, "weight plane", "version k+1, whole or not at all; engines and scorers take it by themselves", 220
    )
    stations = [prompts, schedule, rollout, engines, journal, table, columns, actor, plane]
    parts = [part for station in stations for part in station.drawn()]
    parts += arrow([(220, 75), (270, 75)], EXPERIENCE)
    parts += arrow([(470, 75), (520, 75)], CONTROL, "admits", (472, 68))
    parts += arrow([(720, 65), (760, 65)], CONTROL, "asks", (727, 58))
    parts += arrow([(760, 95), (720, 95)], EXPERIENCE, "tokens", (722, 110))
    parts += arrow([(620, 40 + rollout.height), (620, 200)], EXPERIENCE, "groups", (626, 168))
    parts += arrow([(520, 225), (470, 225)], EXPERIENCE, "receipt", (474, 218))
    parts += arrow([(270, 215), (240, 215)], EXPERIENCE)
    parts += arrow([(240, 245), (270, 245)], EXPERIENCE)
    parts += arrow([(370, 200 + table.height), (370, 360)], EXPERIENCE, "rows of batch k", (376, 330))
    parts += arrow([(470, 395), (640, 395)], WEIGHTS, "publishes k+1", (510, 388))
    parts += arrow(
        [(860, 395), (910, 395), (910, 40 + engines.height)], WEIGHTS, "swap under running rollouts", (735, 300)
    )
    parts += arrow([(330, 200), (330, 40 + schedule.height)], CONTROL, "ready, dropped, trained", (190, 170))
    key = [("experience", EXPERIENCE), ("weights", WEIGHTS), ("control", CONTROL)]
    parts += [lines([name], 20 + 110 * place, 480, color=color, size=13) for place, (name, color) in enumerate(key)]
    return svg(500, parts)


if __name__ == "__main__":
    (FIGURES / "house.svg").write_text(house())
    (FIGURES / "way.svg").write_text(way())
