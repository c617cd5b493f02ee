import json
import math
from dataclasses import replace
from pathlib import Path

import observe_samples as samples
import pytest

from headrace.observe import totals
from headrace.observe.record import BatchRecord, Totals
from headrace.observe.summary import build_summary, write_summary


def gap(tokens: int, mean: int, most: int) -> dict[str, float]:
    """In units of 1e-7."""
    return {"mismatch_tokens": tokens, "mismatch_mean_abs": mean * 1e-7, "mismatch_max_abs": most * 1e-7}


def test_names_and_values() -> None:
    """Three batches of 80 trained tokens; the process has run for 3.5 s, see `observe_samples.totals`."""
    run = samples.run(
        batches=(
            samples.batch(
                0, reward_mean=0.2, staleness={0: 80}, drift_mean_abs=0.01, behavior_outside_share=0.1, **gap(80, 2, 5)
            ),
            samples.batch(
                1,
                staleness={0: 20, 2: 60},
                drift_max_abs=0.7,
                effective_token_share=0.9,
                truncated_samples=12,
                reward_terms={"math": 0.125, "regex": 0.5},
                **gap(20, 7, 9),
            ),
            samples.batch(
                2,
                reward_mean=0.9,
                trained_tokens=40,
                staleness={1: 40},
                padding_tokens=40,
                reward_terms={"math": 0.75},
            ),
        ),
        number=3,
        processes={
            0: samples.totals(
                3.5,
                failure_words={"timeout": "600 s"},
                drop_words={"filter_error": "KeyError: 'x' (f.py, line 3)"},
                reward_calls={"1": 1, "0.012": 98, "10": 1},
            )
        },
        evaluations=(samples.evaluation(0, 0.25), samples.evaluation(2, 0.5), samples.evaluation(3, 0.75)),
    )
    assert build_summary(run) == {
        "status": "running",
        "error": None,
        "version": 3,
        "wall_s": 3.5,
        "groups": {
            "issued": 20,
            "running": 5,
            "ready": 2,
            "trained": 12,
            "dropped": {"zero_spread": 1},
            "drop_words": {"filter_error": "KeyError: 'x' (f.py, line 3)"},
        },
        "samples": {
            "generated": 70,
            "trained": 48,
            "truncated": 12,
            "failed": {"timeout": 1},
            "failure_words": {"timeout": "600 s"},
        },
        "tokens": {
            "generated": 350,
            "trained": 200,
            "generated_per_s": 100.0,
            "trained_per_s": pytest.approx(200 / 3.5),
            "masked": 0,
            "nonpad_share": 320 / 360,  # 40 of 3 x 120 were padding
        },
        # 100 tokens of staleness 0, 40 of 1, 60 of 2.
        "staleness": {"max": 2, "mean": 160 / 200, "histogram": {"0": 100, "1": 40, "2": 60}},
        "reward": {
            "first": 0.2,
            "last": 0.9,
            "terms": {"math": {"first": 0.125, "last": 0.75}, "regex": {"first": 0.5, "last": 0.5}},
            # Of 100 calls 98 took 12 ms, one 1 s and one 10 s.
            "call_p50_s": 0.012,
            "call_p99_s": 1.0,
        },
        "eval": {
            "before": 0.25,
            "after": 0.75,
            "sets": {"eval": {"before": 0.25, "after": 0.75, "version": 3, "prompts": 64, "failed": 0, "metrics": {}}},
            "seconds": None,
            "versions_behind": None,
        },
        "best": {"version": None, "metric": None, "value": None, "checkpoint": None},
        "time": {
            "generate_s": pytest.approx(2.8),
            "train_s": 1.75,
            "swap_stall_s": pytest.approx(0.035),
            "trainer_s": {
                "trains": 1.75,
                "publishes": pytest.approx(1.05),
                "waits: generation": pytest.approx(0.525),
                "other": pytest.approx(0.175),
            },
            "engines_s": {"computes": pytest.approx(2.8), "waits: the trainer": pytest.approx(0.7)},
            "wait_s": {
                "actor: rows of the batch": pytest.approx(1.4),
                "rollout: the gate": pytest.approx(0.35),
            },
            "busy": {"engine 0": pytest.approx(0.8), "trainer": pytest.approx(0.5)},
            "devices": {"cuda:0": pytest.approx(1.3)},
            "lent": 0.0,
            "mfu": {"training": pytest.approx(0.4), "run": pytest.approx(0.2)},
        },
        # Of the one batch that has each.
        "correction": {"outside_share": pytest.approx(0.1), "effective_share": pytest.approx(0.9)},
        # Weighted by trained tokens: 80 at 0.01, 120 at 0.002.
        "drift": {"mean_abs": pytest.approx((0.8 + 0.24) / 200), "max_abs": 0.7},
        # Weighted by the tokens that it was measured on: 80 at 2e-7, 20 at 7e-7.
        "mismatch": {"mean_abs": pytest.approx(3e-7), "max_abs": pytest.approx(9e-7), "tokens": 100},
        "kept_mass": {"first": None, "last": None},
        "alarms": [],
        "seed": 7,
        "config_sha256": "ab" * 32,
    }


def test_what_was_not_measured_is_null() -> None:
    summary = build_summary(samples.run(0, evaluations=(samples.evaluation(0, 0.25),)))
    assert summary["wall_s"] == 0.0
    assert summary["tokens"]["trained_per_s"] is None
    assert summary["tokens"]["nonpad_share"] is None
    assert summary["staleness"] == {"max": None, "mean": None, "histogram": {}}
    assert summary["reward"] == {"first": None, "last": None, "terms": {}, "call_p50_s": None, "call_p99_s": None}
    assert (summary["eval"]["before"], summary["eval"]["after"]) == (0.25, None)
    assert summary["mismatch"] == {"mean_abs": None, "max_abs": None, "tokens": 0}
    assert summary["drift"] == {"mean_abs": None, "max_abs": None}


def test_a_run_whose_tokens_are_all_old_has_drift_and_no_mismatch() -> None:
    summary = build_summary(samples.run(2))
    assert summary["drift"] == {"mean_abs": pytest.approx(0.002), "max_abs": 0.3}
    assert summary["mismatch"] == {"mean_abs": None, "max_abs": None, "tokens": 0}


def test_processes_of_a_run_add_up() -> None:
    second = samples.totals(10, failed_samples={"reward": 2, "timeout": 3}, wait_s={"actor: a checkpoint": 1.0})
    summary = build_summary(samples.run(processes={0: samples.totals(5), 1: second}))
    assert summary["wall_s"] == 15
    assert summary["tokens"]["generated"] == 1500
    assert summary["samples"]["failed"] == {"timeout": 4, "reward": 2}
    assert summary["time"]["wait_s"] == {
        "actor: rows of the batch": 2.0,
        "rollout: the gate": 0.5,
        "actor: a checkpoint": 1.0,
    }


def test_totals_since_is_the_inverse_of_adding() -> None:
    early = Totals(elapsed_s=2, generated_tokens=30, failed_samples={"a": 1}, wait_s={"x: y": 1.0})
    late = Totals(elapsed_s=5, generated_tokens=90, failed_samples={"a": 4, "b": 2}, wait_s={"x: y": 1.5, "x: z": 2.0})
    assert totals.since(late, early) == Totals(
        elapsed_s=3, generated_tokens=60, failed_samples={"a": 3, "b": 2}, wait_s={"x: y": 0.5, "x: z": 2.0}
    )
    assert totals.add([totals.since(late, early), early]) == late
    assert totals.add([]) == Totals()


def test_the_last_words_of_all_processes_stand_at_the_end() -> None:
    first = Totals(failure_words={"timeout": "old", "engine": "gone"}, drop_words={"filter_error": "KeyError"})
    second = Totals(failure_words={"timeout": "new"})
    assert list(totals.add([first, second]).failure_words.items()) == [("engine", "gone"), ("timeout", "new")]
    assert totals.add([first, second]).drop_words == {"filter_error": "KeyError"}
    assert totals.since(second, first).failure_words["timeout"] == "new"


def test_the_file_is_json_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text("old")
    summary = build_summary(samples.run())
    write_summary(path, summary)
    assert json.loads(path.read_text()) == summary
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def test_what_is_not_finite_is_null_in_the_file(tmp_path: Path) -> None:
    batches = (
        samples.batch(0, reward_mean=-math.inf, reward_terms={"math": math.nan}, **gap(80, 2, 5)),
        samples.batch(1, drift_mean_abs=math.nan),
    )
    write_summary(tmp_path / "summary.json", build_summary(samples.run(batches=batches)))
    told = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert told["reward"] == {
        "first": None,
        "last": 0.25,
        "terms": {"math": {"first": None, "last": None}},
        "call_p50_s": None,
        "call_p99_s": None,
    }
    assert told["drift"] == {"mean_abs": None, "max_abs": 0.3}
    assert told["mismatch"]["max_abs"] == 5e-7


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_largest_of_a_run_is_nan_if_one_batch_has_it(place: int) -> None:
    values = [0.1, 0.2]
    values.insert(place, math.nan)
    batches = tuple(
        samples.batch(number, drift_max_abs=value, mismatch_max_abs=value) for number, value in enumerate(values)
    )
    summary = build_summary(samples.run(batches=batches))
    assert math.isnan(summary["drift"]["max_abs"])
    assert math.isnan(summary["mismatch"]["max_abs"])


def test_batches_on_which_nothing_was_trained_have_no_drift() -> None:
    untrained = [samples.batch(number, trained_tokens=0, drift_max_abs=0.0, warm_up=True) for number in range(2)]
    assert build_summary(samples.run(batches=tuple(untrained)))["drift"] == {"mean_abs": None, "max_abs": None}


def test_a_batch_record_survives_json() -> None:
    record = samples.batch(3, staleness={0: 5, 11: 2})
    assert BatchRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    assert replace(record, batch=4) != record
