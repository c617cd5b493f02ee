"""What differs between two configs, as a run that is resumed with another one tells it."""

from __future__ import annotations

from typing import Any

from headrace.config import TrainConfig, config_sha256, dump_config
from headrace.config.reading.changes import describe_changes


def dumped(**changes: Any) -> str:
    return dump_config(config(**changes))


def config(**changes: Any) -> TrainConfig:
    return TrainConfig.model_validate({"model": {"path": "m"}, "data": {"train": "t.jsonl"}, **changes})


def told(before: str, now: str) -> list[str]:
    return [line.removeprefix("  - ") for line in describe_changes(before, now).splitlines() if line]


def test_each_key_that_differs_is_named_with_both_values() -> None:
    before = dumped(trainer={"optimizer": {"lr": 1e-6}, "batches": 3}, rollout={"sampling": {"stop_token_ids": [1]}})
    now = dumped(
        trainer={"optimizer": {"lr": 2e-6}, "batches": 3},
        rollout={"sampling": {"stop_token_ids": [1, 2]}},
        data={"train": "other.jsonl"},
    )
    assert told(before, now) == [
        'data.train: was "t.jsonl", now "other.jsonl"',
        "rollout.sampling.stop_token_ids: was [1], now [1, 2]",
        "trainer.optimizer.lr: was 1e-06, now 2e-06",
    ]


def test_a_list_of_sections_is_told_place_by_place() -> None:
    terms = [{"function": "exact"}, {"function": "f1", "weight": 0.5}]
    heavier = [{"function": "exact"}, {"function": "f1", "weight": 0.7}]
    assert told(dumped(reward={"terms": terms}), dumped(reward={"terms": heavier})) == [
        "reward.terms.1.weight: was 0.5, now 0.7"
    ]


def test_what_a_resumed_run_may_change_is_not_told() -> None:
    """Just as the digest, which such changes leave as it is."""
    judge = {"function": "judge", "judge": {"prompt": "{response}"}}
    before: dict[str, Any] = {"reward": {"terms": [judge]}}
    now: dict[str, Any] = {
        "reward": {"workers": 3, "timeout_s": 3, "terms": [{**judge, "judge": {**judge["judge"], "timeout_s": 9}}]},
        "runtime": {"threads": 1},
        "engine": {"max_concurrent_sequences": 3},
        "rollout": {"max_drops_per_batch": 7},
        "async": {"table_gib": 2.5},
    }
    assert config_sha256(config(**before)) == config_sha256(config(**now))
    assert told(dumped(**before), dumped(**now)) == []
    assert told(dumped(**before), dumped(**now, seed=4)) == ["seed: was 0, now 4"]


def test_keys_that_only_one_of_them_knows_are_told() -> None:
    assert told(dumped().replace("seed: 0", "sead: 0"), dumped()) == [
        "seed: was not there, now 0",
        "sead: was 0, now not there",
    ]


def test_many_changes_are_told_in_part() -> None:
    before = "".join(f"k{i}: 0\n" for i in range(30))
    assert told(before, before.replace("0\n", "1\n"))[-2:] == ["k19: was 0, now 1", "and 10 more"]


def test_a_text_that_is_no_config_tells_nothing() -> None:
    assert told("", dumped()) == told("[", dumped()) == told("3", dumped()) == []
