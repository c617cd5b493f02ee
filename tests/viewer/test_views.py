"""What people see: rendered to a recording console, and driven by the refresh loop."""

from __future__ import annotations

import asyncio
import io
import re
import threading
from dataclasses import replace
from typing import Any

import observe_samples as samples
import pytest
from rich.cells import cell_len
from rich.console import Console

from headrace.observe.record import BatchRecord
from headrace.observe.run_record import RunRecord
from headrace.observe.summary import build_summary
from headrace.store import Counts, EventRow
from headrace.viewer.plot.curves import curves, panels
from headrace.viewer.terminal.inspect_text import describe_run
from headrace.viewer.terminal.live import LiveView, render
from headrace.viewer.terminal.plain import PlainView, evaluation_line
from headrace.viewer.terminal.showing import view_for, watch
from headrace.viewer.terminal.snapshot import Snapshot, take_snapshot


def lines_of(run: RunRecord, width: int = 80, height: int = 23) -> list[str]:
    console = Console(width=width, height=height + 1, file=io.StringIO(), record=True)
    console.print(render(take_snapshot(run), width, height), end="")
    return console.export_text().split("\n")


@pytest.mark.parametrize("size", [(80, 23), (64, 20), (100, 30), (120, 49), (200, 60), (63, 20), (80, 12)])
@pytest.mark.parametrize("batches", [0, 1, 37, 81])
def test_the_view_fits_its_terminal(size: tuple[int, int], batches: int) -> None:
    run = samples.learning_run(batches)
    lines = [line for line in lines_of(run, *size) if line]
    assert len(lines) <= size[1]
    assert max(map(cell_len, lines)) <= size[0]


def test_80_by_24_tells_everything() -> None:
    text = "\n".join(lines_of(samples.learning_run()))
    for told in (
        "addition", "running", "batch 37/81", "46%", "ETA 0:15", "version v37",
        "reward 0.848", "eval v0 0.250 → v30 0.880", "0.25 … 0.91",
        "generated   5.1k  tok/s", "trained    11.7k  tok/s",
        "η = 2", "61%", "28%", "11%",
        "trainer", "50% trains", "30% publishes", "15% waits: generation", "5% other",
        "engines", "80% computes", "20% waits: the trainer",
        "ready 4  running 18  of 48", "trained 592", "zero_spread 26", "timeout 1",
    ):  # fmt: skip
        assert told in text, told
    assert "…" not in text.replace("0.25 … 0.91", "")


def test_panels_keep_their_height_while_the_run_goes() -> None:
    """A view that grows or shrinks would jump."""
    heights = {len(lines_of(samples.learning_run(batches))) for batches in (0, 1, 5, 37)}
    assert len(heights) == 1


def test_a_run_that_has_not_said_how_far_ahead_it_goes() -> None:
    text = "\n".join(lines_of(samples.run(0, ahead=None)))
    assert re.search(r"ready 2  running 5 +trained", text)


def test_a_restore_may_bring_back_more_than_there_are_places_for() -> None:
    counts = Counts(issued=50, running=20, ready=30, trained=0, dropped={})
    text = "\n".join(lines_of(samples.run(0, counts=counts)))
    assert re.search(r"ready 30  running 20 +trained", text)


def test_a_view_without_room_gathers_the_smallest_shares() -> None:
    text = "\n".join(lines_of(samples.learning_run(), 64, 20))
    for told in ("50% trains", "50% other", "80% computes"):
        assert told in text, told


def test_a_record_without_times_by_cause_says_what_computed() -> None:
    run = samples.run(1, processes={0: samples.totals(10, trainer_s={}, engines_s={}, device_s={})})
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(describe_run(run, build_summary(run), 100))
    text = console.export_text()
    assert "engines computed  8.0 s" in text
    assert "trainer computed  5.0 s" in text


HANGS = "took longer than 10 s"
BLOCKED = "the event loop has been blocked for 6 s, at /home/me/think.py, line 12, in run (rollout.workflow)"


def troubled_run(batches: int, **changes: Any) -> RunRecord:
    """A run whose samples fail, and whose event loop was blocked."""
    run = samples.learning_run(batches)
    events = (
        EventRow(1, 0.0, "failed_sample", {"prompt": "old", "message": "of the process before"}),
        EventRow(2, 0.0, "started", {"version": "v0"}),
        EventRow(3, 0.0, "failed_sample", {"prompt": "7", "message": f"reward_timeout: {HANGS}"}),
        EventRow(4, 0.0, "blocked", {"message": BLOCKED}),
        EventRow(5, 0.0, "swap", {"version": "v1"}),
    )
    words = {"reward_raised": "KeyError", "reward_timeout": HANGS}
    totals = replace(
        run.processes[0],
        failed_samples={"reward_raised": 3, "reward_timeout": 12},
        failure_words=words,
        reward_calls={"0.012": 98, "1": 2},
        **changes,
    )
    return replace(run, processes={0: totals}, events=events)


@pytest.mark.parametrize("size", [(80, 23), (64, 20), (100, 30), (120, 49), (200, 60)])
@pytest.mark.parametrize("batches", [0, 37])
def test_trouble_fits_its_terminal_and_is_told_whole_where_there_is_room(size: tuple[int, int], batches: int) -> None:
    lines = [line for line in lines_of(troubled_run(batches), *size) if line]
    assert len(lines) <= size[1]
    assert max(map(cell_len, lines)) <= size[0]
    text = " ".join(" ".join(lines).replace("│", " ").split())
    assert "failed samples 15 (reward_raised 3, reward_timeout 12)" in text
    assert f"last failure reward_timeout: {HANGS}" in text
    assert f"blocked {BLOCKED}"[: 50 if size[1] < 23 else None] in text
    assert "scoring 12 ms p50; p99 1.0 s" in text or size == (64, 20)


def test_a_failure_of_an_evaluation_is_shown_before_anything_is_trained() -> None:
    run = troubled_run(0)
    run = replace(run, processes={}, events=run.events[:3])
    assert f"last failure reward_timeout: {HANGS}" in "\n".join(lines_of(run))


def test_by_what_and_how_fast_new_weights_travelled_is_shown() -> None:
    """The newest; nothing where they leave by a pointer."""
    run = samples.learning_run(2)
    assert "new weights" not in "\n".join(lines_of(run, 200, 60))
    ways = [("weights_sent", "shm", 5_000_000), ("weights_carried", "collective (gloo)", 2_000_000)]
    events = tuple(
        EventRow(number, 0.0, kind, {"transport": transport, "bytes_per_s": speed})
        for number, (kind, transport, speed) in enumerate(ways, 1)
    )
    told = "\n".join(lines_of(replace(run, events=events), 200, 60))
    assert re.search(r"sent +2\.0\S* +B/s, new weights, collective \(gloo\)", told), told
    assert re.search(
        r"sent +5\.0\S* +B/s, new weights, shm", "\n".join(lines_of(replace(run, events=events[:1]), 200, 60))
    )


def test_terms_of_the_reward_are_shown() -> None:
    batch = samples.batch(0, reward_terms={"math": 0.25, "a_name_that_is_long": 0.9})
    text = "\n".join(lines_of(samples.run(1, batches=(batch,))))
    assert re.search(r"math +0\.250 +reward term", text)
    assert re.search(r"a_name_that_i… +0\.900 +reward term", text)


def test_the_reward_of_each_source_is_shown_and_plotted() -> None:
    batch = samples.batch(0, reward_sources={"gsm8k": 0.25, "code": 0.5})
    run = samples.run(1, batches=(batch,))
    assert re.search(r"gsm8k +0\.250 +reward of its prompts", "\n".join(lines_of(run)))
    told: list[str] = []
    view = PlainView(told.append)
    view.show(take_snapshot(samples.run(0)))
    view.show(take_snapshot(run))
    assert "(gsm8k 0.250, code 0.500)" in told[0]
    own = [panel for panel in panels(iter([run])) if panel.key.startswith("source:")]
    assert [panel.key for panel in own] == ["source:gsm8k", "source:code"]
    assert curves(run, own, "batch").keys() == {"source:gsm8k", "source:code"}


def test_more_ages_than_lines_are_gathered() -> None:
    batch = samples.batch(0, staleness=dict.fromkeys(range(10), 10))
    text = "\n".join(lines_of(samples.run(1, batches=(batch,))))
    assert re.search(r"≥4 +\S+ +60%", text)
    assert "left out 0" in text


def test_names_and_reasons_are_not_markup() -> None:
    counts = Counts(issued=1, running=0, ready=0, trained=0, dropped={"[red]x[/nothing]": 1})
    text = "\n".join(lines_of(samples.run(1, name="[bold]a[/b]", counts=counts)))
    assert "[bold]a[/b]" in text
    assert "[red]x[/nothing]" in text


def test_the_live_view_redraws_in_place_without_a_thread() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, height=24, legacy_windows=False)
    view = LiveView(console)
    threads = threading.active_count()
    view.open()
    view.show(take_snapshot(samples.learning_run(10)))
    first = stream.getvalue()
    view.show(take_snapshot(samples.learning_run(11)))
    second = stream.getvalue()[len(first) :]
    # What a terminal echoes of Ctrl-C stays on the last line, where the next drawing begins.
    assert first.endswith("\r")
    assert second.endswith("\r")
    assert threading.active_count() == threads
    view.close()
    assert "batch 10/81" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", first)
    assert second.count("\x1b[1A") == 22
    assert second.count("\n") == 22
    assert stream.getvalue().endswith("\x1b[?25h")


def test_plain_lines_tell_each_batch_and_evaluation_once() -> None:
    told: list[str] = []
    view = PlainView(told.append)
    view.open()
    view.show(take_snapshot(samples.run(0)))
    view.show(take_snapshot(samples.run(0, evaluations=(samples.evaluation(0, 0.25),))))
    view.show(take_snapshot(samples.run(2, evaluations=(samples.evaluation(0, 0.25),))))
    view.show(take_snapshot(samples.run(2, evaluations=(samples.evaluation(0, 0.25),))))
    view.close()
    assert told == [
        "eval v0  score 0.250  response 9.5 tok  prompts 64",
        *(
            f"batch {number}/10  reward 0.250  response 5.0 tok  loss 0.010  grad 0.50  stale 0:75% 1:25%  "
            "drift 0.0020  running 4 ready 2  1.00 s"
            for number in (1, 2)
        ),
    ]


def measured(number: int, mean: float | None) -> BatchRecord:
    return samples.batch(number, mismatch_tokens=32 if mean else 0, mismatch_mean_abs=mean, mismatch_max_abs=mean)


def test_the_mismatch_is_told_where_it_was_measured_and_the_last_one_stays_in_the_live_view() -> None:
    told: list[str] = []
    view = PlainView(told.append)
    view.show(take_snapshot(samples.run(0)))
    run = samples.run(3, batches=(measured(0, 4e-7), measured(1, 5e-7), measured(2, None)))
    view.show(take_snapshot(run))
    assert ["mismatch" in line for line in told] == [True, True, False]
    assert "drift 0.0020  mismatch 4.0e-07  running" in told[0]
    assert take_snapshot(run).mismatch == 5e-7
    assert "mismatch   5.0e-07  engine to trainer" in "\n".join(lines_of(run, 120, 49))
    assert take_snapshot(samples.run(2)).mismatch is None


def test_plain_lines_of_a_resumed_run_begin_with_where_it_stands() -> None:
    told: list[str] = []
    view = PlainView(told.append)
    view.show(take_snapshot(samples.run(2)))
    view.show(take_snapshot(samples.run(3)))
    assert len(told) == 2
    assert told[0].startswith("demo goes on from v2: batch 2/10")
    assert told[1].startswith("batch 3/10")


def test_plain_lines_tell_what_failed_and_what_was_dropped_and_why() -> None:
    told: list[str] = []
    view = PlainView(told.append)
    view.show(take_snapshot(samples.run(0)))
    words = samples.totals(1, failure_words={"a": "x", "b": "y"}, drop_words={"filter_error": "TypeError: no bool"})
    batches = (
        samples.batch(
            0,
            reward_terms={"math": 0.25, "form": 0.9},
            failed_samples={"a": 2, "b": 1},
            dropped_groups={"zero_spread": 4},
            totals=words,
        ),
        samples.batch(1, failed_samples={"a": 2}, dropped_groups={"zero_spread": 4, "filter_error": 1}, totals=words),
    )
    view.show(take_snapshot(samples.run(2, batches=batches)))
    assert "reward 0.250 (math 0.250, form 0.900)  " in told[0]
    assert told[0].endswith("1.00 s  failed 3 (a 2, b 1), last b: y  dropped 4 (zero_spread 4)")
    assert told[1].endswith(
        "1.00 s  failed 2, last a: x  dropped 5 (filter_error 1, zero_spread 4), last filter_error: TypeError: no bool"
    )


def test_an_evaluation_says_how_many_answers_have_no_score() -> None:
    assert evaluation_line(samples.evaluation(3, 0.5)).endswith("prompts 64")
    assert evaluation_line(replace(samples.evaluation(3, None), failed=64)).endswith(
        "score -  response 9.5 tok  prompts 64  failed 64"
    )


def test_troubles_of_this_process_have_a_plain_line_each() -> None:
    told: list[str] = []
    view = PlainView(told.append)
    view.show(take_snapshot(troubled_run(0)))
    view.show(take_snapshot(troubled_run(0)))
    assert told == [f"failed_sample  prompt 7: reward_timeout: {HANGS}", f"blocked  {BLOCKED}"]


def test_failures_without_a_batch_are_told_ever_more_seldom() -> None:
    """A sample more fails each second, from the first on; a batch is trained after 500 s."""
    told: list[tuple[int, str]] = []
    now = 0
    view = PlainView(lambda line: told.append((now, line)))
    for now in range(700):
        run = samples.run(
            int(now >= 500),
            events=(),
            processes={
                0: samples.totals(
                    now, generated_samples=now, failed_samples={"a": now}, failure_words={"a": f"sample {now}"}
                )
            },
        )
        view.show(take_snapshot(run))
    lines = [(at, line) for at, line in told if "failed" in line]
    assert [at for at, _ in lines] == [10, 30, 70, 150, 310, 510, 530, 570, 650]
    assert lines[1][1] == "batch 0/10  failed 30 of 30 samples, last a: sample 30"


def test_a_batch_without_trained_tokens_or_with_a_skipped_step_is_told() -> None:
    told: list[str] = []
    view = PlainView(told.append)
    view.show(take_snapshot(samples.run(0)))
    odd = samples.batch(0, staleness={}, skipped=True, grad_norm=float("nan"), loss=-1.1e-08)
    view.show(take_snapshot(samples.run(1, batches=(odd,))))
    assert "loss 0.000  grad nan (step skipped: not finite)  stale -" in told[0]


@pytest.mark.parametrize(("changes", "why"), [
    ({"warm_up": True, "critic_loss": 0.0}, "the critic learns alone"),
    ({"warm_up": True, "truncated_samples": 16}, "the critic learns alone"),
    ({"critic_loss": 0.5, "truncated_samples": 16}, "every sample was cut off"),
    ({"truncated_samples": 16}, "every sample was cut off"),
    ({"critic_loss": 0.5}, "no token is trained"),
    ({}, "no token is trained"),
])  # fmt: skip
def test_a_batch_that_leaves_the_policy_as_it_is_says_why(changes: dict[str, Any], why: str) -> None:
    told: list[str] = []
    view = PlainView(told.append)
    view.show(take_snapshot(samples.run(0)))
    idle = samples.batch(0, trained_tokens=0, skipped=True, loss=0.0, grad_norm=0.0, staleness={}, **changes)
    view.show(take_snapshot(samples.run(1, batches=(idle,))))
    assert f"policy unchanged: {why}  stale -" in told[0]
    assert "grad" not in told[0]
    assert "drift" not in told[0]
    view_of = "\n".join(lines_of(samples.run(1, batches=(idle,)), 120, 49))
    assert f"policy unchanged: {why}" in view_of
    for name in ("drift", "clipped", "weights", "KL"):
        assert re.search(rf"│ {name} +- ", view_of), name


def test_a_terminal_gets_the_live_view_and_a_file_plain_lines() -> None:
    terminal = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), force_terminal=True, _environ={})
    assert isinstance(view_for(terminal), LiveView)
    ascii_terminal = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), force_terminal=True, _environ={})
    assert isinstance(view_for(ascii_terminal), PlainView)
    assert isinstance(view_for(Console(file=io.StringIO(), _environ={})), PlainView)


class Steps:
    """A clock on which each sleep but the last is over at once."""

    def __init__(self, naps: int) -> None:
        self.naps = naps
        self.slept: list[float] = []
        self.asleep = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == self.naps:
            self.asleep.set()
            await asyncio.Event().wait()


class Seen:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def open(self) -> None:
        self.calls.append("open")

    def show(self, snapshot: Snapshot) -> None:
        self.calls.append(snapshot.version)

    def close(self) -> None:
        self.calls.append("close")


def test_watch_shows_the_end_when_cancelled() -> None:
    async def scenario() -> tuple[list[str], list[float]]:
        view, clock, runs = Seen(), Steps(3), iter(range(100))
        task = asyncio.create_task(watch(view, lambda: take_snapshot(samples.run(next(runs))), clock, period_s=0.25))
        await clock.asleep.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return view.calls, clock.slept

    calls, slept = asyncio.run(scenario())
    assert calls == ["open", "v0", "v1", "v2", "v3", "close"]
    assert slept == [0.25, 0.25, 0.25]


def test_watch_closes_the_view_when_the_record_cannot_be_read() -> None:
    view = Seen()

    def broken() -> Snapshot:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        asyncio.run(watch(view, broken, Steps(1)))
    assert view.calls == ["open", "close"]


def test_inspect_tells_the_law_the_reasons_and_the_waits() -> None:
    run = replace(
        samples.learning_run(),
        events=(
            EventRow(1, 0.0, "swap", {"version": "v1"}),
            EventRow(2, 0.0, "waiting", {"role": "rollout", "message": "has waited [long]"}),
        ),
    )
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(describe_run(run, build_summary(run), 100))
    text = console.export_text()
    for told in (
        "addition  running  v37 of 81",
        "640 issued = 18 running + 4 ready + 592 trained + 26 dropped",
        "zero_spread 26",
        "timeout 1",
        "0.250 → 0.880",
        "log-prob mismatch",
        "- mean, - largest, on 0 fresh tokens",
        "0.0020 mean, 0.300 largest",
        "time of the trainer",
        "  waits: generation    2.0 s   15%",
        "time of the engines",
        "  waits: the trainer   2.6 s   20%",
        "devices are busy",
        "  cuda:0              17.1 s  130%",
        "mean 0.49",
        "waiting  role rollout, message has waited [long]",
    ):
        assert told in text, told
    assert "BROKEN" not in text
    assert "swap" not in text.partition("last events")[2]
    assert "the gate" not in text


def test_inspect_names_a_broken_law() -> None:
    counts = Counts(issued=9, running=1, ready=1, trained=1, dropped={})
    run = samples.run(0, counts=counts)
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(describe_run(run, build_summary(run), 100))
    assert "BROKEN: these add up to 3" in console.export_text()
