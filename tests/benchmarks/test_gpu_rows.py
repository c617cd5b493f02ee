"""Figures of `make gpu-check`: one that cannot be measured takes no other with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.rows import as_they_come, failures, one_line, row


def half(of: int, *, times: int = 1) -> dict[str, Any]:
    if of % 2:
        raise ValueError(f"{of} is odd\nand more of that")
    return {"half": of // 2 * times}


def two_then_none(first: int) -> Iterator[dict[str, Any]]:
    yield half(first)
    yield half(first + 2)
    yield half(first + 3)


def test_a_row_that_fails_is_a_line_in_its_place() -> None:
    freed: list[str] = []
    makes = [row(half, 4), row(half, 3, times=5), partial(two_then_none, 6), row(half, 10, times=2)]
    rows = list(as_they_come(makes, lambda: freed.append("once")))
    assert rows == [
        {"half": 2},
        {"failed": "half(3, times=5): ValueError: 3 is odd"},
        {"half": 3},
        {"half": 4},
        {"failed": "two_then_none(6): ValueError: 9 is odd"},
        {"half": 10},
    ]
    assert freed == ["once", "once"]
    assert failures([*rows, {"half": 1, "failed": {"generate": "a peer's"}}]) == [rows[1]["failed"], rows[4]["failed"]]


def test_what_may_not_begin_is_told_beside_what_did() -> None:
    may = iter([True, False, False])
    rows = list(as_they_come([row(half, 4), row(half, 6), row(half, 3)], lambda: None, lambda: next(may)))
    told = "not begun: the time to begin was over"
    assert rows == [{"half": 2}, {"failed": f"half(6): {told}"}, {"failed": f"half(3): {told}"}]


def test_an_interrupt_is_no_failure_of_a_row() -> None:
    def stopped() -> Iterator[dict[str, Any]]:
        raise KeyboardInterrupt
        yield {}

    with pytest.raises(KeyboardInterrupt):
        list(as_they_come([stopped], lambda: None))


def test_of_another_process_the_last_line_is_told() -> None:
    told = 'Traceback:\n  File "a.py", line 3, in main\n    x()\nValueError: no such shape\n'
    assert one_line(RuntimeError(told)) == "RuntimeError: ValueError: no such shape"
    assert one_line(RuntimeError("CUDA error: an illegal access\nset CUDA_LAUNCH_BLOCKING")) == (
        "RuntimeError: CUDA error: an illegal access"
    )
    assert one_line(TimeoutError()) == "TimeoutError: "


def test_all_others_are_measured_and_kept_and_the_end_tells_what_was_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measurements = {
        "first": lambda runs, bytes_per_s, rate: [row(half, 3), row(half, 8)],
        "second": lambda runs, bytes_per_s, rate: [row(half, runs)],
    }
    monkeypatch.setattr(gpu, "MEASUREMENTS", measurements)
    monkeypatch.setattr(gpu, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu, "_device", lambda bytes_per_s, rate: {"device": "none"})
    monkeypatch.setattr(gpu, "free_memory", lambda: None)
    for name in ("bandwidth", "matrix_rate"):
        monkeypatch.setattr(gpu, name, lambda: 1.0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("sys.argv", ["gpu", "--only", "first,second", "--runs", "6"])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == "these could not be measured:\nfirst: half(3): ValueError: 3 is odd"
    kept = json.loads((tmp_path / "gpu.json").read_text())
    assert kept["first"]["rows"] == [{"failed": "half(3): ValueError: 3 is odd"}, {"half": 4}]
    assert kept["second"] == {"machine": {"device": "none"}, "runs": 6, "rows": [{"half": 3}]}
    monkeypatch.setattr("sys.argv", ["gpu", "--only", "second", "--runs", "4"])
    gpu.main()
    kept["second"]["rows"], kept["second"]["runs"] = [{"half": 2}], 4
    assert json.loads((tmp_path / "gpu.json").read_text()) == kept
    monkeypatch.setattr("sys.argv", ["gpu", "--only", "first,second", "--begin-within", "-1"])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    told = "not begun: the time to begin was over"
    assert ended.value.code == f"these could not be measured:\nfirst: {told}\nsecond: {told}"
    assert json.loads((tmp_path / "gpu.json").read_text()) == kept
