"""Every number of a batch's record has one name, the same for all trackers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import observe_samples as samples
import pytest

from headrace.observe.record import BatchRecord, EpochRecord, Totals
from headrace.observe.trackers.names import UNNAMED, batch_values, evaluation_values


def numbers(record: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Each with its place, as `totals.wait_s.actor: rows`."""
    match record:
        case dict():
            for name, value in record.items():
                yield from numbers(value, f"{prefix}.{name}" if prefix else str(name))
        case list() | tuple():
            for place, value in enumerate(record):
                yield from numbers(value, f"{prefix}.{place}")
        case int() | float():
            yield prefix, float(record)


def full_batch() -> BatchRecord:
    """With a number of its own everywhere that one can be."""
    count = iter(range(1, 1000))

    def filled(kind: type) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for field in fields(kind):
            match str(field.type):
                case "dict[str, float]" | "dict[str, int]":
                    values[field.name] = {"one": next(count), "another: one": next(count)}
                case "dict[int, int]":
                    values[field.name] = {0: next(count), 3: next(count)}
                case "dict[str, str]":
                    values[field.name] = {"timeout": "words"}
                case "bool":
                    values[field.name] = True
                case "Totals":
                    values[field.name] = Totals(**filled(Totals))
                case "tuple[EpochRecord, ...]":
                    values[field.name] = (EpochRecord(**filled(EpochRecord)), EpochRecord(**filled(EpochRecord)))
                case _:
                    values[field.name] = next(count)
        return values

    return BatchRecord(**filled(BatchRecord))


def test_every_number_of_a_batchs_record_has_a_name() -> None:
    record = full_batch()
    told = set(batch_values(record).values())
    missing = {
        place
        for place, value in numbers(record.to_json())
        if value not in told and not any(place.startswith(known) for known in UNNAMED)
    }
    assert missing == set()


def test_names_are_such_as_every_tracker_takes() -> None:
    values = batch_values(samples.batch(0, reward_terms={"Länge €": 0.5}, epochs=(EpochRecord(1, 0.1, 0.2, 0.3),)))
    assert all(re.fullmatch(r"[A-Za-z0-9_.\-/]+", name) for name in values)
    assert values["reward/terms/L_nge__"] == 0.5
    assert values["time/wait_s/actor/rows_of_the_batch"] == 0.4
    assert values["epoch/1/step_kl"] == 0.2
    assert "epoch/1/step_kl" not in batch_values(samples.batch(0, epochs=(EpochRecord(1, 0.1, None, 0.3),)))


def test_names_that_are_the_same_once_they_are_plain_stay_apart() -> None:
    values = batch_values(samples.batch(0, reward_terms={"a b": 1.0, "a_b": 2.0}))
    assert (values["reward/terms/a_b"], values["reward/terms/a_b_2"]) == (1.0, 2.0)


def test_staleness_is_told_by_mean_and_by_age() -> None:
    """60 tokens of staleness 0 and 20 of 2: the mean is 40 / 80."""
    values = batch_values(samples.batch(0, staleness={0: 60, 2: 20}))
    assert (values["staleness/mean"], values["staleness/max"]) == (0.5, 2.0)
    assert (values["staleness/tokens/0"], values["staleness/tokens/2"]) == (60.0, 20.0)
    assert "staleness/mean" not in batch_values(samples.batch(0, staleness={}))


@pytest.mark.parametrize("why", [{"warm_up": True}, {"only_recorded": True}, {"truncated_samples": 16}, {}])
def test_of_a_batch_without_a_step_nothing_is_told_that_a_step_measures(why: dict[str, Any]) -> None:
    measured = {
        *("policy/loss", "policy/grad_norm", "policy/lr", "policy/clip_fraction", "policy/approx_kl"),
        *("policy/entropy", "policy/kept_mass", "reference/kl", "drift/mean_abs", "drift/max_abs", "own/one"),
        *("correction/weight_mean", "correction/outside_share", "correction/effective_share"),
    }
    zeros = dict.fromkeys(("behavior_outside_share", "effective_token_share", "entropy", "kept_mass"), 0.0)
    others = {"reference_kl": 0.0, "own": {"one": 0.0}, "mismatch_mean_abs": 1e-7, "critic_loss": 0.5, **zeros}
    stepped = batch_values(samples.batch(0, **others))
    assert measured <= stepped.keys()
    told = batch_values(samples.batch(0, trained_tokens=0, staleness={}, **others, **why))
    assert measured.isdisjoint(told)
    assert told["reward/mean"] == stepped["reward/mean"]
    assert (told["critic/loss"], told["mismatch/mean_abs"], told["tokens/trained"]) == (0.5, 1e-7, 0.0)


def test_what_was_not_measured_is_left_out() -> None:
    assert "policy/entropy" not in batch_values(samples.batch(0))
    assert batch_values(samples.batch(0, entropy=1.5))["policy/entropy"] == 1.5
    assert batch_values(samples.batch(0, skipped=True))["policy/step_skipped"] == 1.0
    assert "eval/score" not in evaluation_values(samples.evaluation(3, None))
    assert evaluation_values(samples.evaluation(3, 0.25)) == {
        "eval/score": 0.25,
        "eval/response_tokens_mean": 9.5,
        "eval/prompts": 64.0,
        "eval/failed": 0.0,
    }
