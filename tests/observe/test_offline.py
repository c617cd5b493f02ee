"""The record of offline trainers: a row and a name for each number, and views that keep their frame."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
from rich.console import Console

from headrace.config.pairs import DPOConfig
from headrace.observe.metrics.offline import MEASURED, OFFLINE_EVALUATION, OFFLINE_STEP, OFFLINE_SUMMARY
from headrace.observe.offline.names import held_out_values, step_values
from headrace.observe.offline.record import HeldOutRows, Measured, OfflineStep
from headrace.observe.offline.run_record import OfflineRun
from headrace.observe.offline.summary import build_summary
from headrace.viewer.terminal.offline_text import describe_run
from headrace.viewer.terminal.offline_view import OfflineLines, render

FULL = Measured(**{field.name: 0.5 + place for place, field in enumerate(fields(Measured))})
OPEN = ("last", "before", "after")


def step(number: int, measured: Measured = FULL) -> OfflineStep:
    return OfflineStep(number, 3, 8, measured, 11.0, 1e-4, False, 100, 200, 0, 0.5 * number)


def run(steps: int = 4, planned: int | None = 10, **changes: Any) -> OfflineRun:
    record = OfflineRun(
        name="a-run",
        kind="dpo",
        status="running",
        config=DPOConfig.model_validate({"model": {"path": "m"}, "data": {"train": "t"}}),
        config_sha256="ab" * 32,
        branch=3,
        planned_steps=planned,
        steps=tuple(step(number + 1) for number in range(steps)),
        evaluations=(HeldOutRows(0, 3, 64, replace(FULL, loss=0.7), 2.5), HeldOutRows(3, 3, 64, FULL, 2.5)),
    )
    return replace(record, **changes)


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and name not in OPEN:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name


@pytest.mark.parametrize(
    ("rows", "record"), [(OFFLINE_STEP, OfflineStep), (OFFLINE_EVALUATION, HeldOutRows), (MEASURED, Measured)]
)
def test_every_field_of_a_record_has_one_row(rows: Any, record: Any) -> None:
    assert sorted(row.name for row in rows) == sorted(field.name for field in fields(record))


def test_every_field_of_the_summary_has_one_row_in_its_order() -> None:
    assert [row.name for row in OFFLINE_SUMMARY] == list(leaves(build_summary(run())))
    assert [row.name for row in OFFLINE_SUMMARY] == list(leaves(build_summary(run(0, evaluations=()))))


def test_every_number_has_a_name_in_trackers() -> None:
    values = step_values(step(7))
    assert {f"train/{field.name}" for field in fields(Measured)} <= set(values)
    assert len(values) == len(fields(Measured)) + len(fields(OfflineStep)) - 2, "but for the step, and what is measured"
    assert (values["train/grad_norm"], values["train/step_skipped"]) == (11.0, 0.0)
    assert "train/margin" not in step_values(step(7, Measured(0.5)))
    found = held_out_values(HeldOutRows(3, 0, 64, FULL, 2.5))
    assert (found["eval/rows"], found["eval/seconds"], found["eval/loss"]) == (64.0, 2.5, 0.5)


def test_records_come_back_from_json() -> None:
    assert OfflineStep.from_json(step(3).to_json()) == step(3)
    found = HeldOutRows(3, 0, 64, Measured(0.5), 2.5)
    assert HeldOutRows.from_json(found.to_json()) == found


def printed(what: Any, width: int, height: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, height=height, force_terminal=False).print(what)
    return out.getvalue().rstrip("\n").split("\n")


@pytest.mark.parametrize("size", [(40, 10), (60, 12), (100, 24), (200, 60)])
@pytest.mark.parametrize(
    "shown", [run(), run(0, evaluations=()), run(1, None), replace(run(), steps=(step(1, Measured(float("nan"))),))]
)
def test_the_view_keeps_its_frame(shown: OfflineRun, size: tuple[int, int]) -> None:
    lines = printed(render(shown, *size), *size)
    assert len(lines) <= size[1]
    assert all(len(line) <= size[0] for line in lines)
    if size[0] >= 50:
        assert lines[0].startswith("╭")
        assert lines[-1].rstrip().endswith("╯")


def test_the_view_and_inspect_tell_of_training_and_held_out_rows() -> None:
    view = "\n".join(printed(render(run(), 120, 30), 120, 30))
    assert "step 4/10" in view
    assert "ETA 0:03" in view
    assert re.search(r"held out +step 3 ", view)
    assert re.search(r"chosen / rejected +3\.500 / 4\.500 ", view)
    text = "\n".join(printed(describe_run(run(), build_summary(run()), 100), 100, 50))
    assert "64 rows, lowest loss at step 3" in text
    assert "0.7000 → 0.5000" in text


def test_lines_tell_of_each_evaluation_once() -> None:
    told: list[str] = []
    lines = OfflineLines(told.append)
    lines.show(run(evaluations=run().evaluations[:1]))
    lines.show(run())
    lines.show(run())
    assert [line.split(": held out")[0] for line in told] == ["dpo step 0", "dpo step 3"]
