"""Pictures of invented runs: what is in them, and that all of it is within them, whatever the data."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import observe_samples as samples
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plot_reading import SVG, Picture, places

from headrace.observe.run_record import RunRecord
from headrace.viewer.plot.chart import make_chart
from headrace.viewer.plot.layout import WIDTH, Frame, lay_out
from headrace.viewer.plot.marks import DARK, LIGHT, Text
from headrace.viewer.plot.page import render_page
from headrace.viewer.plot.svg import render_svg
from headrace.viewer.plot.words import width_of

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&quot;\"'--> \x1b]0;x\x07\u202e $\\frac{1}{0}$"

number = st.one_of(
    st.floats(),
    st.floats(0, 1),
    st.sampled_from([0.0, -0.0, 5e-324, 1e-200, 1.7e308, 1e150, -1e150, 1e-9, 1e6, 1e6 + 0.1, math.nan, math.inf]),
)
anything = st.one_of(st.none(), number)
batch = st.builds(
    lambda reward, entropy, loss, reference_kl, trained: samples.batch(
        0, reward_mean=reward, entropy=entropy, loss=loss, reference_kl=reference_kl, trained_tokens=trained
    ),
    number,
    anything,
    number,
    anything,
    st.sampled_from([80, 0]),
)


@st.composite
def runs(draw: st.DrawFn) -> list[RunRecord]:
    made = []
    for seed, drawn in enumerate(draw(st.lists(st.lists(batch, min_size=1, max_size=6), min_size=1, max_size=3))):
        batches = tuple(replace(one, batch=at, totals=samples.totals(at + 1)) for at, one in enumerate(drawn))
        evaluations = tuple(samples.evaluation(at, draw(anything)) for at in range(0, len(drawn) + 1, 3))
        config = samples.config(seed=seed)
        made.append(replace(samples.run(len(drawn)), batches=batches, evaluations=evaluations, config=config))
    return made


@settings(max_examples=60, deadline=None)
@given(runs(), st.sampled_from(["batch", "time"]), st.integers(1, 3), st.booleans())
def test_any_data_are_drawn_within_their_boxes(made: list[RunRecord], by: Any, smooth: int, each: bool) -> None:
    chart = make_chart(made, [f"run {place}" for place in range(len(made))], by=by, smooth=smooth, each=each)
    drawing, frames = lay_out(chart)
    picture = Picture(render_svg(chart))
    for path in picture.root.iter(f"{SVG}path"):
        drawn = places(path)
        assert all(0 <= x <= drawing.width and 0 <= y <= drawing.height for x, y in drawn)
        if path.find(f"{SVG}title") is not None:
            assert any(all(_is_in(frame, place) for place in drawn) for frame in frames)
    assert not re.search(rb'="[^"]*\b(nan|inf)\b', render_svg(chart))
    for text in drawing.marks:
        if isinstance(text, Text):
            width = width_of(text.words, text.size)
            start = text.x - {"start": 0, "middle": width / 2, "end": width}[text.anchor]
            assert start >= -1
            assert start + width <= drawing.width + 1
    json.loads(_Reader(render_page(chart)).data)


def test_the_lines_are_the_values() -> None:
    run = samples.learning_run(37)
    picture = Picture(render_svg(make_chart([run], ["demo"])))
    (reward,) = picture.values("reward")
    assert [x for x, _ in reward] == pytest.approx(range(1, 38), abs=0.02)
    assert [y for _, y in reward] == pytest.approx([batch.reward_mean for batch in run.batches], abs=1e-3)
    (scores,) = picture.values("evaluation")
    assert scores == [pytest.approx((0, 0.25), abs=1e-2), pytest.approx((30, 0.88), abs=1e-2)]
    (tokens,) = picture.values("tokens/s")
    assert [y for _, y in tokens] == pytest.approx([1800 / 0.35] * 37, rel=1e-3)
    ((mean,), (largest,)) = picture.values("staleness"), picture.values("staleness", dashed=True)
    assert mean[0][1] == pytest.approx((1400 + 2 * 400) / 4100, abs=0.01)
    assert {round(y, 2) for _, y in largest} == {2.0}


def test_a_gap_parts_the_line_and_a_value_alone_is_a_dot() -> None:
    rewards = [0.0, 1.0, math.nan, 0.5, None, 1.0, 0.0]
    batches = tuple(samples.batch(at, entropy=value) for at, value in enumerate(rewards))
    lines = Picture(render_svg(make_chart([replace(samples.run(7), batches=batches)], ["demo"]))).values("entropy")
    assert sorted([round(x) for x, _ in line] for line in lines) == [[1, 2], [4], [6, 7]]


def test_smoothed_lines_have_the_recorded_ones_behind_them() -> None:
    picture = Picture(render_svg(make_chart([samples.learning_run(20)], ["demo"], smooth=4)))
    (smooth,), (faint,) = picture.values("reward"), picture.values("reward", faint=True)
    ys = [y for _, y in faint]
    assert [y for _, y in smooth][3:] == pytest.approx([sum(ys[at - 3 : at + 1]) / 4 for at in range(3, 20)], abs=2e-3)
    assert "smoothed: mean of the last 4 batches, but for evaluations; faint: as recorded" in picture.words


@pytest.mark.slow
def test_long_runs_make_small_files() -> None:
    run = samples.learning_run(20_000, 20_000)
    chart = make_chart([run], ["demo"])
    assert len(render_svg(chart)) < 300_000
    assert len(render_page(chart)) < 900_000


def test_hostile_names_are_shown_and_nothing_more() -> None:
    run = samples.run(3)
    run = replace(run, batches=tuple(replace(batch, reward_terms={HOSTILE: 0.5}) for batch in run.batches))
    chart = make_chart([run], [HOSTILE])
    picture = Picture(render_svg(chart))
    assert {element.tag.removeprefix(SVG) for element in picture.root.iter()} <= {
        "svg",
        "title",
        "rect",
        "path",
        "text",
        "circle",
    }
    assert any("<script>" in words for words in picture.words)
    page = _Reader(render_page(chart))
    assert page.scripts == 2
    assert "img" not in page.tags
    assert page.handlers == []
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text
    assert json.loads(page.data)["entries"][0].startswith("</script><script>alert(1)")


def test_the_page_needs_nothing_and_runs_one_script() -> None:
    source = render_page(make_chart([samples.learning_run()], ["demo"]))
    page = _Reader(source)
    assert page.links == []
    digest = base64.b64encode(hashlib.sha256(page.script.encode()).digest()).decode()
    style = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert page.policy == (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'sha256-{style}'; base-uri 'none'; "
        "form-action 'none'"
    )
    assert "innerHTML" not in page.script
    values = json.loads(page.data)
    reward = next(plot for plot in values["plots"] if plot["title"] == "reward")
    assert [point[1] for point in reward["lines"][0]["points"]] == pytest.approx(
        [batch.reward_mean for batch in samples.learning_run().batches], rel=1e-6
    )


def test_colours_show_on_their_ground() -> None:
    """At least 3 to 1 for words and lines of the first runs (WCAG 2.2, 1.4.11), and 4.5 to 1 for words (1.4.3)."""
    for colours in (LIGHT, DARK):
        assert min(_contrast(colours[name], colours["ground"]) for name in ("ink", "muted")) >= 4.5
        lines = {name: _contrast(colours[name], colours["ground"]) for name in colours if name[1:].isdigit()}
        assert min(lines.values()) >= 2
        assert min(lines[name] for name in ("c0", "c1", "c2")) >= 3


def test_a_png_is_the_same_picture() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    from headrace.viewer.plot.png import render_png

    run = samples.run(3)
    run = replace(run, batches=tuple(replace(batch, reward_terms={HOSTILE: 0.5}) for batch in run.batches))
    for chart in (make_chart([run], [HOSTILE]), make_chart([samples.learning_run()], ["demo"], smooth=3)):
        drawing, frames = lay_out(chart)
        pixels = imread(io.BytesIO(render_png(chart)), format="png")
        assert pixels.shape[:2] == (2 * drawing.height, 2 * WIDTH)
        blue = [int(LIGHT["c0"][at : at + 2], 16) / 255 for at in (1, 3, 5)]
        for frame in frames:
            top, left = round(2 * frame.top) - 6, round(2 * frame.left) - 6
            box = pixels[top : top + 2 * round(frame.height) + 12, left : left + 2 * round(frame.width) + 12, :3]
            assert (abs(box - blue).max(axis=2) < 0.05).any()


def _is_in(frame: Frame, place: tuple[float, float]) -> bool:
    x, y = place[0] - frame.left, place[1] - frame.top
    return -0.06 <= x <= frame.width + 0.06 and -0.06 <= y <= frame.height + 0.06  # tenths of a pixel


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    shares = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


class _Reader(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.text = page.decode()
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.links: list[str] = []
        self.scripts = 0
        self.policy = self.data = self.script = self.style = ""
        self._inside = ""
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.tags.append(tag)
        self.handlers += [name for name in known if name.startswith("on")]
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        if tag == "meta" and known.get("http-equiv") == "Content-Security-Policy":
            self.policy = known["content"] or ""
        if tag == "script":
            self.scripts += 1
            self._inside = "data" if known.get("type") == "application/json" else "script"
        if tag == "style":
            self._inside = "style"

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            setattr(self, self._inside, getattr(self, self._inside) + data)
