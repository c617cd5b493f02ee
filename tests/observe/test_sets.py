"""Evaluations of several held-out sets, as views, the summary, pictures and trackers tell of them."""

from __future__ import annotations

import io
from dataclasses import fields, replace

import observe_samples as samples
from rich.console import Console

from headrace.observe.run_record import Estimate, Evaluation, RunRecord
from headrace.observe.summary import build_summary
from headrace.observe.trackers.names import EVALUATION, evaluation_values
from headrace.store import Best
from headrace.viewer.plot.curves import curves, panels
from headrace.viewer.terminal.inspect_text import describe_run
from headrace.viewer.terminal.live import render
from headrace.viewer.terminal.plain import evaluation_line
from headrace.viewer.terminal.snapshot import take_snapshot

METRICS = {"pass@1": Estimate(0.5, 0.125, 8), "majority": Estimate(0.75, None, 1), "pass@8": Estimate(None, None, 0)}


def evaluated(number: int, name: str = "gsm", score: float = 0.5) -> Evaluation:
    found = {**METRICS, "pass@1": Estimate(score, 0.125, 8)}
    base = replace(samples.evaluation(number, score), set=name, prompts=8, drawn=64, metrics=found)
    return replace(base, seconds=12.5, versions_behind=2, failed=3)


def run() -> RunRecord:
    plain = [
        replace(samples.evaluation(number, 0.25 + number / 10), seconds=2.5, versions_behind=1) for number in (0, 3)
    ]
    best = Best(3, 0, "step_3", "gsm/pass@1", 0.625)
    return samples.run(4, evaluations=(plain[0], evaluated(0), plain[1], evaluated(3, score=0.625)), best=best)


def test_the_summary_has_each_set_and_what_evaluations_cost() -> None:
    summary = build_summary(run())
    found = summary["eval"]
    assert (found["before"], found["after"]) == (0.25, 0.55), "of the plain set"
    assert (found["sets"]["gsm"]["before"], found["sets"]["gsm"]["after"]) == (0.5, 0.625)
    assert found["sets"]["gsm"]["metrics"]["pass@1"] == {"value": 0.625, "stderr": 0.125, "prompts": 8}
    assert (found["sets"]["gsm"]["version"], found["sets"]["gsm"]["failed"]) == (3, 3)
    assert (found["seconds"], found["versions_behind"]) == (30.0, 2)
    best = {"version": 3, "metric": "gsm/pass@1", "value": 0.625, "checkpoint": "checkpoints/step_3"}
    assert summary["best"] == best


def test_views_name_each_set() -> None:
    console = Console(width=100, height=31, file=io.StringIO(), record=True)
    console.print(render(take_snapshot(run()), 100, 30))
    text = console.export_text()
    assert "eval 0.250→0.550  gsm pass@1 0.5" in text
    console = Console(width=140, height=60, file=io.StringIO(), record=True)
    console.print(describe_run(run(), build_summary(run()), 140))
    text = console.export_text()
    assert "0.500 → 0.625; v3: pass@1 0.625 ±0.125, majority 0.750, pass@8 -, 3 samples failed" in text
    assert "v3, gsm/pass@1 0.625: checkpoints/step_3" in text
    assert "0:30, at most 2 versions behind at the end of one" in text


def test_a_line_tells_of_every_metric_of_a_set() -> None:
    assert evaluation_line(evaluated(3)) == (
        "eval gsm v3  pass@1 0.500 ±0.125  majority 0.750  pass@8 -  response 9.5 tok  prompts 8 x 8  failed 3  "
        "2 versions behind"
    )


def test_every_number_of_an_evaluation_has_a_name() -> None:
    numbers = {field.name for field in fields(Evaluation)} - {"branch", "number", "set", "samples", "metrics"}
    assert set(EVALUATION) == numbers
    assert evaluation_values(evaluated(3)) == {
        "eval/gsm/score": 0.5,
        "eval/gsm/response_tokens_mean": 9.5,
        "eval/gsm/prompts": 8.0,
        "eval/gsm/failed": 3.0,
        "eval/gsm/drawn": 64.0,
        "eval/gsm/seconds": 12.5,
        "eval/gsm/versions_behind": 2.0,
        "eval/gsm/pass_at_1": 0.5,
        "eval/gsm/pass_at_1_stderr": 0.125,
        "eval/gsm/majority": 0.75,
    }


def test_a_picture_has_a_panel_for_each_set_with_its_metrics() -> None:
    shown = panels([run()])
    found = curves(run(), shown, "batch")
    assert [panel.title for panel in shown[:3]] == ["reward", "evaluation", "evaluation: gsm"]
    assert [(at.x, at.y) for at in found["evaluation"][""]] == [(0.0, 0.25), (3.0, 0.55)]
    assert {name: [at.y for at in curve] for name, curve in found["evaluation:gsm"].items()} == {
        "pass@1": [0.5, 0.625],
        "majority": [0.75, 0.75],
    }


def test_a_record_of_before_there_were_sets_is_of_the_plain_one() -> None:
    from headrace.store import MetricRow

    record = {"number": 3, "reward_mean": 0.5, "response_tokens_mean": 4.0, "prompts": 8}
    found = Evaluation.of(MetricRow(1, 0, 3, 0.0, record))
    assert (found.set, found.score, found.metrics, found.label) == ("eval", 0.5, {}, "eval")
