"""Configs of simulated runs, which need neither a model nor data."""

from __future__ import annotations

from typing import Any

from headrace.config import TrainConfig


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
