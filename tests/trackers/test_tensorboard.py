"""Event files, read by TensorBoard's own reader. Skipped without it: `make trackers-env`."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from tracked_run import BATCHES, Tracked

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", exc_type=ImportError)
pytestmark = pytest.mark.slow


def read(folder: Path) -> object:
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def test_it_has_what_the_record_has_and_nothing_that_was_taken_back(tracked: Tracked) -> None:
    """A scalar of TensorBoard has 32 bits."""
    events = read(tracked.folder / "trackers" / "tensorboard")
    got: dict[int, dict[str, float]] = defaultdict(dict)
    for name in events.Tags()["scalars"]:
        scalars = events.Scalars(name)
        assert len({scalar.step for scalar in scalars}) == len(scalars), f"{name} is there once a step"
        for scalar in scalars:
            got[scalar.step][name] = scalar.value
    expected: dict[int, dict[str, float]] = defaultdict(dict)
    for values in (tracked.batches, tracked.evaluations):
        for step, of_step in values.items():
            expected[step] |= {name: float(np.float32(value)) for name, value in of_step.items()}
    assert got == expected
    assert sorted(got) == list(range(BATCHES + 1))
    assert (got[2]["run/branch"], got[3]["run/branch"]) == (0.0, 1.0)


def test_config_and_summary_are_text(tracked: Tracked) -> None:
    events = read(tracked.folder / "trackers" / "tensorboard")

    def text(tag: str) -> object:
        shown = events.Tensors(tag)[-1].tensor_proto.string_val[0].decode()
        assert all(line.startswith("    ") for line in shown.splitlines()), "a block of code, no Markdown"
        return json.loads(shown)

    assert text("parameters") == tracked.config
    assert text("summary") == tracked.summary


def test_samples_are_text(tmp_path: Path) -> None:
    from headrace.observe.trackers.protocol import TrackedRun
    from headrace.observe.trackers.tensorboard import TensorboardEvents

    tracker = TensorboardEvents(TrackedRun("run", "ab", tmp_path, {}, None), tmp_path)
    rows = [{"prompt": "2+3=", "response": "# <b>5</b>\n![x](http://x)", "reward": 1.0}]
    tracker.samples(7, 5.0, rows)
    tracker.close("finished", {"version": 7})
    shown = read(tmp_path).Tensors("samples")[0]
    assert (shown.step, shown.wall_time) == (7, 5.0)
    lines = shown.tensor_proto.string_val[0].decode().splitlines()
    assert all(line.startswith("    ") for line in lines)
    assert json.loads("\n".join(lines)) == rows
