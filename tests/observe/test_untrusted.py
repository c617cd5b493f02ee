"""Words of others, as a reward's error has them, are in every view and steer no terminal."""

from __future__ import annotations

import io
import unicodedata
from dataclasses import asdict, replace
from pathlib import Path

import observe_samples as samples
import pytest
from rich.console import Console

from headrace.config import dump_config
from headrace.observe.run_record import RunWatcher
from headrace.observe.summary import build_summary
from headrace.observe.untrusted import visible, visible_in, visible_line
from headrace.store import RunReader, RunStore
from headrace.viewer.terminal.inspect_text import describe_run
from headrace.viewer.terminal.live import render
from headrace.viewer.terminal.plain import PlainView
from headrace.viewer.terminal.snapshot import Snapshot, take_snapshot

EVIL = "boom \x1b]0;PWN\x1b\\\x1b[5m \u202e\x9b31m\x07\r\x08 \u2066end"
_BIDI = "\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def harmful(text: str) -> list[str]:
    return [each for each in text if (unicodedata.category(each) == "Cc" and each != "\n") or each in _BIDI]


def printed(drawn: object, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, height=40, color_system=None)
    console.print(drawn)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def reader(tmp_path: Path) -> RunReader:
    """Of a run in which all that others choose is evil: its folder, names, failures, drops and messages."""
    path = tmp_path / f"run{EVIL}".replace("/", "")
    store = RunStore.create(path, config_yaml=dump_config(samples.config()), config_sha256="c0ffee", now=0.0)
    totals = samples.totals(
        1.0,
        failed_samples={"reward_raised": 3, EVIL: 1},
        failure_words={"reward_raised": f"ValueError: {EVIL}\n{EVIL}", EVIL: EVIL},
        drop_words={"again: failed": EVIL, EVIL: EVIL},
    )
    for number in (1, 2):
        batch = samples.batch(
            number - 1,
            totals=totals,
            failed_samples={"reward_raised": 2, EVIL: 1},
            dropped_groups={"again: failed": 2, EVIL: 1},
            reward_terms={EVIL: 1.0},
            reward_sources={EVIL: 0.5},
            own={EVIL: 0.5},
        )
        store.checkpoints.record_version(0, number, 0.0)
        store.metrics.write(0, number, 0.0, batch.to_json())
    estimate = {"value": 0.5, "stderr": 0.1, "prompts": 8}
    scored = {"number": 2, "reward_mean": 0.25, "response_tokens_mean": 4.0, "prompts": 8}
    store.metrics.write(0, 2, 0.0, {**scored, "set": EVIL, "metrics": {EVIL: estimate}}, kind="eval")
    store.metrics.write(0, 2, 0.0, asdict(replace(totals, elapsed_s=9.0)), kind="totals")
    store.events.write(0.0, "started", {"version": "v0", "batches": 9})
    for kind in ("failed_sample", "callback_failed"):
        store.events.write(0.0, kind, {"message": EVIL, "prompt": EVIL, "role": EVIL, EVIL: [EVIL]})
    store.close()
    return RunReader(path)


def test_no_view_of_a_run_is_steered_by_words_in_it(reader: RunReader) -> None:
    record = RunWatcher(reader, live=lambda: (0, samples.totals(9.5, failure_words={EVIL: EVIL}))).read()
    snapshot = take_snapshot(record)
    lines: list[str] = []
    view = PlainView(lines.append)
    view.show(snapshot_before(snapshot))
    view.show(snapshot)
    shown = [
        printed(describe_run(record, build_summary(record), 100)),
        *(printed(render(snapshot, width, 40), width) for width in (60, 100, 160)),
        *lines,
    ]
    assert len(lines) >= 4
    for text in shown:
        assert harmful(text) == []
    assert all("\n" not in line for line in lines)
    assert sum("PWN" in text for text in shown) >= 6


def snapshot_before(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, batches=(), evaluations=(), troubles=())


def test_what_is_named_can_be_read() -> None:
    assert visible_line("a\x1b[5m\n\u202eb") == "a␛[5m␊<U+202E>b"
    assert visible("a\n\x07b") == "a\n␇b"
    assert visible("für 你好 👩\u200d👩") == "für 你好 👩\u200d👩"
    assert visible_in({"a\x07": ["\x07", 1, None, {"b": "\x07"}]}) == {"a␇": ["␇", 1, None, {"b": "␇"}]}
