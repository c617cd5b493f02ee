"""A section's own default stays where another key of the section is set."""

from typing import Any

import pytest

from headrace.config import DPOConfig, RMConfig, SFTConfig, TrainConfig, load_config

GIVEN = {"model": {"path": "m"}, "data": {"train": "t.jsonl"}}


@pytest.mark.parametrize(
    ("kind", "section", "lr"),
    [
        (TrainConfig, "critic", 1e-5),
        (TrainConfig, "trainer", 1e-6),
        (SFTConfig, "trainer", 1e-5),
        (RMConfig, "trainer", 1e-5),
        (DPOConfig, "trainer", 1e-6),
    ],
)
def test_another_key_leaves_the_learning_rate_as_it_is(kind: Any, section: str, lr: float) -> None:
    for overrides in ({}, {f"{section}.optimizer.weight_decay": 0.1}, {f"{section}.max_grad_norm": 0.5}):
        assert getattr(load_config(kind, GIVEN, overrides), section).optimizer.lr == lr, overrides
