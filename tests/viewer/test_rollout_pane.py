"""The latest rollouts in the live view: a few lines, whatever a model wrote."""

from __future__ import annotations

import io
import unicodedata
from pathlib import Path

import observe_samples as samples
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from headrace.store.rollouts import Rollout, Rollouts, Turn
from headrace.viewer.terminal.latest import LatestRollouts
from headrace.viewer.terminal.live import render
from headrace.viewer.terminal.rollout_pane import latest, one_line
from headrace.viewer.terminal.snapshot import take_snapshot

ATTACKS = (
    "\x1b[2J\x1b[H\x1b]0;title\x07\x9b31m",
    "[bold red]markup[/] [link=http://x]y[/link]",
    "a\u202egnp.exe\u2066 \u200e\u200f",
    "Z" + "\u0335\u0321\u034f\u0489" * 40 + "algo",
    "👨‍👩‍👧‍👦🏳️‍🌈👍🏽🇩🇪🇫🇷",
    "日本語のテキスト、全角　スペース ｶﾅ",
    "\u0634\u0643\u0631\u0627 \u05e9\u05dc\u05d5\u05dd 123",
    "क्षत्रिय नमस्ते",
    "ᄀ\u1161\u11a8 한글 \u1160\u115f",
    "line\nline\r\nline\vline\x85line\u2028line\u2029\tend",
    "\ud800\udfff lone",
    "\U000e0041\U000e0042 tags \ufeff \u00ad",
    "╭─╮│╰╯━" * 50,
    "x" * 100_000,
    "",
)


def rollout(given: str = "2+2=", written: str = "4", **changes: object) -> Rollout:
    values: dict[str, object] = {
        "batch": 3, "at": 0.0, "key": (0, 1, 0), "episode": 0, "sample": 0, "prompt_id": "7", "status": "completed",
        "reason": None, "reward": 1.0, "advantage": 0.5, "tokens": 2, "staleness": 0,
        "turns": (Turn(False, given), Turn(True, written)), "data": b"",
    }  # fmt: skip
    return Rollout(**{**values, **changes})  # type: ignore[arg-type]


def printed(what: object, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, height=60, force_terminal=False, color_system=None).print(what)
    return out.getvalue().rstrip("\n").split("\n")


def is_framed(lines: list[str], width: int) -> bool:
    first, *inner, last = lines
    return (
        first.startswith("╭")
        and first.endswith("╮")
        and last.startswith("╰")
        and last.endswith("╯")
        and all(line.startswith("│ ") and line.endswith(" │") and cell_len(line) == width for line in inner)
    )


@given(st.text(max_size=300), st.text(max_size=300), st.integers(64, 200))
@example(ATTACKS[3], ATTACKS[4], 64)
@example(ATTACKS[5], ATTACKS[5], 65)
def test_no_text_breaks_the_frame(prompt: str, response: str, width: int) -> None:
    lines = printed(latest([rollout(prompt, response)], width, 4), width)
    assert len(lines) == 4
    assert is_framed(lines, width)


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_text_is_shown_and_does_nothing(attack: str) -> None:
    lines = printed(latest([rollout(attack, attack), rollout()], 100, 6), 100)
    assert is_framed(lines, 100)
    shown = "".join(lines)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert "2+2=" in lines[3], "the next one is where it belongs"
    for line in lines[1:-1]:
        assert line.startswith(("│ reward", "│ answer")), "a line whose first letter is Latin is laid out from the left"


def test_what_takes_no_glyph_is_named() -> None:
    assert one_line("a\x1b[2Jb", 80, begins=False) == "a␛[2Jb"
    assert one_line("a\u202eb\nc\td", 80, begins=False) == "a<U+202E>b␊c␉d"
    assert one_line("👨\u200d👩", 80, begins=False) == "👨<U+200D>👩"
    assert one_line("e\u0301 e\u0335\u0336\u0337", 80, begins=False) == "é e\u0335◌◌"
    assert one_line("👍🏽🇩🇪", 80, begins=False) == "👍□□□"


def test_the_end_of_the_prompt_and_both_ends_of_the_response() -> None:
    assert one_line("0123456789", 5, begins=False) == "…6789"
    assert one_line("0123456789", 7, begins=True) == "01…6789"
    assert one_line("日本語", 4, begins=False) == "…語", "two cells each"
    assert one_line("日本語", 6, begins=False) == "日本語"


def test_reward_batch_and_what_became_of_it() -> None:
    lines = printed(latest([rollout(reward=None, status="failed")], 80, 4), 80)
    assert lines[1].startswith("│ reward      -  batch 3  failed  prompt 2+2=")
    assert lines[2].startswith("│ answer 4 ")
    assert "reward  1.000  batch 3  prompt" in printed(latest([rollout()], 80, 4), 80)[1]


def view(height: int, *rollouts: Rollout, width: int = 100) -> str:
    console = Console(width=width, height=height + 1, file=io.StringIO(), record=True)
    console.print(render(take_snapshot(samples.learning_run(), rollouts), width, height), end="")
    text = console.export_text()
    assert len(text.rstrip("\n").split("\n")) <= height
    return text


@pytest.mark.parametrize(("height", "shown"), [(23, 0), (30, 0), (32, 1), (36, 3), (40, 4), (60, 4)])
def test_the_pane_is_there_where_there_is_room(height: int, shown: int) -> None:
    text = view(height, *[rollout(f"prompt-{number}") for number in range(6)])
    assert text.count("prompt-") == shown
    assert ("latest rollouts" in text) == (shown > 0)


def test_a_run_without_rollouts_says_so_and_keeps_its_height() -> None:
    heights = {len(view(40, *rollouts).split("\n")) for rollouts in ((), (rollout(),), (rollout(),) * 4)}
    assert len(heights) == 1
    assert "none yet" in view(40)
    quiet = samples.run(config=samples.config(record={"rollouts": 0}))
    assert "none is kept: record.rollouts is 0" in "\n".join(printed(render(take_snapshot(quiet), 100, 40), 100))


def test_the_best_and_the_worst_of_the_last_batch_come_first(tmp_path: Path) -> None:
    assert LatestRollouts(tmp_path).read(1) == ()
    record = Rollouts(tmp_path)
    record.write(
        rollout(batch=batch, key=(0, batch, 0), episode=place, reward=reward)
        for batch, rewards in ((0, [9.0]), (1, [0.5, 0.1, 0.9, 0.4]))
        for place, reward in enumerate(rewards)
    )
    reader = LatestRollouts(tmp_path)
    assert [found.reward for found in reader.read(2)] == [0.9, 0.1, 0.5, 0.4]
    record.write([rollout(batch=2, key=(0, 2, 0), reward=0.7)])
    assert reader.read(2)[0].reward == 0.9, "read again when there is a new version"
    assert reader.read(3)[0].reward == 0.7
    record.close()
    (tmp_path / "rollouts.db").write_bytes(b"no database")
    assert reader.read(4) == ()
