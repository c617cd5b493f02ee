"""Configs of simulated runs, which need neither a model nor data, and what holds of every run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from headrace.config import TrainConfig
from headrace.controller.simulation.simulated_run import FOLDER, Outcome
from headrace.experience.records.codec import decode_group
from headrace.experience.sample import Group
from headrace.models.simulated import identities
from headrace.store import RunReader


def job(**changes: object) -> TrainConfig:
    """A small asynchronous GRPO run. `changes` are dotted keys with `__`; `async__…` for the section `async`."""
    config: dict[str, Any] = {
        "model": {"path": "nowhere"},
        "data": {"train": "nowhere.jsonl"},
        "reward": {"function": "exact_match"},
        "rollout": {
            "prompts_per_batch": 4,
            "samples_per_prompt": 4,
            "sampling": {"max_new_tokens": 400},
            "episode_timeout_s": 3600,
        },
        "async": {"max_staleness": 2},
        "trainer": {"batches": 8},
        "checkpoint": {"every": 2},
        "record": {"journal": "all"},
        "runtime": {"stall_timeout_s": 3600},
    }
    for key, value in changes.items():
        *sections, name = key.split("__")
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    if config["async"].get("mode", "async") != "async":
        config["async"].pop("max_staleness")
    return TrainConfig.model_validate(config)


def check(outcome: Outcome, config: TrainConfig) -> None:
    """That it finished, the law holds, no group was trained twice or never, and none too old."""
    assert outcome.status == "finished", outcome.lives
    assert outcome.refs_left == 0
    counts, rollout = outcome.counts, config.rollout
    assert counts.law_holds
    assert (counts.running, counts.ready) == (0, 0)
    trained = trained_groups(outcome)
    assert len(trained) == counts.trained
    assert len({(group.key.epoch, group.key.position) for _, group in trained}) == len(trained)
    batches = config.trainer.batches or 0
    assert [batch.batch for batch in outcome.record.batches] == list(range(batches))
    assert Counter(batch for batch, _ in trained) == dict.fromkeys(range(batches), rollout.prompts_per_batch)
    samples = [sample for _, group in trained for sample in group.trainable]
    tally = sum(int(identities(s.tokens, np.arange(len(s)), np.zeros(1, np.intp))[0]) for s in samples)
    assert outcome.state.tally == tally % 2**64, "each sample once"
    assert outcome.state.passes == len(samples)
    if config.deadline_rule != "late":
        stalest = max(staleness for batch in outcome.record.batches for staleness in batch.staleness)
        assert stalest <= config.async_.staleness_bound


def trained_groups(outcome: Outcome) -> list[tuple[int, Group]]:
    """Each with the batch that it was trained in, as they are in the journal."""
    with RunReader(FOLDER, outcome.files) as reader:
        kept = [group for group in reader.journalled() if group.state == "trained"]
    found = [(group.batch, decode_group(group.payload)) for group in kept]
    return sorted(found, key=lambda one: (one[0], one[1].key))
