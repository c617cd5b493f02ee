"""`async` on one device is compared with turns, and with turns in kernels that add in one order, each by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import grpo


def test_each_ratio_is_of_its_own_sides_round_by_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """async / sync: 12 / 4, 14 / 7. async / turns: 12 / 10, 14 / 10; of turns with shares of 0.5 and 0.8, 0.4 and
    0.25."""
    speeds = iter([4.0, 10.0, 12.0, 7.0, 10.0, 14.0] * 2)
    shares = iter([(), (0.5, 0.8), (), (), (0.4, 0.25), ()] * 2)
    asked: list[tuple[str, ...]] = []

    def run(folder: Path, lengths: str, dtype: str, *overrides: str, timeout_s: float) -> dict[str, Any]:
        asked.append(tuple(each for each in overrides if each not in grpo.OVERRIDES))
        lanes = dict(zip(("trainer", "engine"), next(shares), strict=False))
        return {"samples_per_s": next(speeds), "mean_length": 256, "lane_shares": lanes}

    monkeypatch.setattr(grpo, "headrace_run", run)
    monkeypatch.setattr(grpo, "make_model", lambda *given: None)
    skewed, heavy = grpo.mode_rows("0.5 B", 2)
    assert asked[:3] == [
        ('async.mode="sync"',),
        ('async.mode="async"', "runtime.turns=true", "runtime.trace=true"),
        ('async.mode="async"', "runtime.trace=true"),
    ]
    assert asked == asked[:3] * 4
    assert (skewed["lengths"], heavy["lengths"]) == ("skewed", "heavy tail")
    assert skewed["async_over_sync_in_one_order"] == {"median": 2.5, "min": 2.0, "max": 3.0}
    assert skewed["async_over_turns"] == pytest.approx({"median": 1.3, "min": 1.2, "max": 1.4})
    assert skewed["at_most"] == pytest.approx({"median": 1.875, "min": 1.25, "max": 2.5})
    assert skewed["samples_per_s"]["turns"] == {"median": 10.0, "min": 10.0, "max": 10.0}
    assert skewed["mean_over_longest"] == 0.25
