"""The table of what a resumed run may change."""

from __future__ import annotations

import pytest

from headrace.config import TrainConfig, config_sha256
from headrace.config.reading.explain import known_keys
from headrace.config.reading.resume import SAFE, is_operational, is_safe, is_safe_change, why_not


def test_every_key_of_the_table_is_one_of_the_config() -> None:
    known = {key.replace(".0.", ".*.") for key in known_keys(TrainConfig)}
    sections = {key.rpartition(".")[0] for key in known}
    for name in SAFE:
        if "*" not in name:
            assert name in known | sections | {"weights", "track"} or any(
                key.startswith(f"{name}.") for key in known
            ), name


@pytest.mark.parametrize("key", [
    "trainer.batches",
    "trainer.epochs",
    "trainer.optimizer.lr",
    "trainer.lr_schedule.kind",
    "critic.lr_schedule.warmup_steps",
    "evaluation.every",
    "data.eval",
    "checkpoint.keep",
    "track",
    "track.0",
    "engine.kv_cache_gib",
    "reward.terms.2.judge.engine.max_concurrent_sequences",
    "rollout.episode_timeout_s",
    "async.ahead",
])  # fmt: skip
def test_safe(key: str) -> None:
    assert is_safe(key)


@pytest.mark.parametrize(("key", "why"), [
    ("async.max_staleness", "groups that are live were promised a deadline by it"),
    ("async.mode", "groups that are live were promised a deadline by it"),
    ("async.swap", "tokens in flight were promised how they outlive a swap"),
    ("rollout.prompts_per_batch", "deadlines count batches of this size"),
    ("rollout.max_attempts", "prompts that were handed back were promised so many attempts"),
    ("rollout.sampling.temperature", "the groups so far were drawn by it"),
    ("data.train", "the ledger counts prompts by their place in this data"),
    ("reward.terms.1.weight", "the groups so far were scored by it"),
    ("engine.dtype", "the groups so far were sampled by it"),
    ("model.path", "what was trained is this model"),
    ("trainer.optimizer.weight_decay", "the batches so far were trained by it"),
    ("algorithm.loss", "the batches so far were trained by it"),
    ("from.run", "it is what the run began from"),
])  # fmt: skip
def test_refused_with_why(key: str, why: str) -> None:
    assert not is_safe(key)
    assert why_not(key) == why


def test_what_ends_a_run_or_sets_its_rate_decides_its_result() -> None:
    decides = {name for name in SAFE if not is_operational(name.replace("*", "0"))}
    assert decides == {
        "data.eval",
        "rollout.episode_timeout_s",
        "async.ahead",
        "trainer.batches",
        "trainer.epochs",
        "trainer.optimizer.lr",
        "trainer.lr_schedule",
        "critic.optimizer.lr",
        "critic.lr_schedule",
    }


@pytest.mark.parametrize("who", ["reference", "proximal"])
def test_a_model_that_scores_may_get_a_process_of_its_own_and_is_no_hybrid_then(who: str) -> None:
    assert is_safe_change(f"{who}.placement", "own", "process")
    assert is_safe_change(f"{who}.placement", "process", "own")
    assert not is_safe_change(f"{who}.placement", "hybrid", "own")
    assert not is_safe_change(f"{who}.placement", "process", "hybrid")


def test_where_all_workers_are_says_nothing_of_the_result() -> None:
    given = {"model": {"path": "m"}, "data": {"train": "d.jsonl"}, "reward": {"function": "numeric"}}
    here = TrainConfig.model_validate(given)
    with_ray = TrainConfig.model_validate({**given, "runtime": {"kind": "ray"}})
    hybrid = TrainConfig.model_validate({**given, "reference": {"placement": "hybrid"}})
    assert with_ray.reference.placement == "process"
    assert config_sha256(here) == config_sha256(with_ray)
    assert config_sha256(here) != config_sha256(hybrid)
