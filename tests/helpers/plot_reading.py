"""Reads values back from an SVG as a person does: by the labels of the axes."""

from __future__ import annotations

from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"
_UNITS = {"k": 1e3, "M": 1e6, "G": 1e9}


def number(label: str) -> float:
    return float(label[:-1]) * _UNITS[label[-1]] if label[-1] in _UNITS else float(label)


def words(element: ElementTree.Element) -> str:
    """What is shown; not the title that a pointer shows."""
    return (element.text or "") + "".join(child.tail or "" for child in element)


def places(path: ElementTree.Element) -> list[tuple[float, float]]:
    pairs = path.attrib["d"].removeprefix("M").removesuffix("Z").split("L")
    return [(float(x), float(y)) for x, y in (pair.split() for pair in pairs)]


class Picture:
    def __init__(self, svg: str | bytes) -> None:
        self.root = ElementTree.fromstring(svg)
        self.texts = self.root.findall(f"{SVG}text")

    @property
    def words(self) -> list[str]:
        return [words(text) for text in self.texts]

    @property
    def panels(self) -> list[str]:
        return [words(text) for text in self.texts if text.get("font-size") == "13"]

    def values(self, panel: str, *, dashed: bool = False, faint: bool = False) -> list[list[tuple[float, float]]]:
        """The lines of a panel, in order, each as (x, y) in the units of its axes. A value alone is a dot."""
        (title,) = (text for text in self.texts if text.get("font-size") == "13" and words(text) == panel)
        left, top = float(title.attrib["x"]), float(title.attrib["y"]) + 21
        bottom = top + 116
        ys = [
            (float(text.attrib["y"]) - 4, number(words(text)))
            for text in self.texts
            if text.get("text-anchor") == "end"
            and abs(float(text.attrib["x"]) - (left - 6)) < 0.02
            and top - 1 <= float(text.attrib["y"]) - 4 <= bottom + 1
        ]
        xs = [
            (float(text.attrib["x"]), number(words(text)))
            for text in self.texts
            if text.get("text-anchor") == "middle"
            and abs(float(text.attrib["y"]) - (bottom + 16)) < 0.02
            and left - 1 <= float(text.attrib["x"]) <= left + 300
        ]
        found = []
        for path in self.root.iter(f"{SVG}path"):
            named = path.find(f"{SVG}title")
            if named is None or f", {panel}" not in (named.text or "") or ("stroke-dasharray" in path.attrib) != dashed:
                continue
            if ("opacity" in path.attrib) == faint:
                found.append([(_read(xs, x), _read(ys, y)) for x, y in places(path)])
        for dot in self.root.iter(f"{SVG}circle"):
            named = dot.find(f"{SVG}title")
            if named is not None and f", {panel}" in (named.text or "") and float(dot.attrib["r"]) == 2.4:
                found.append([(_read(xs, float(dot.attrib["cx"])), _read(ys, float(dot.attrib["cy"])))])
        return found


def _read(ticks: list[tuple[float, float]], at: float) -> float:
    (first, low), (last, high) = ticks[0], ticks[-1]
    return low + (at - first) / (last - first) * (high - low)
