"""Whose config a file is, where nobody says."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config import ConfigError, DPOConfig, SFTConfig
from headrace.config.kinds import command_of
from headrace.config.reading.recognised import recognised

SECTIONS: dict[str, Any] = {"model": {"path": "m"}, "data": {"train": "t"}}


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({}, "train"),
        ({"reward": {"function": "numeric"}}, "train"),
        ({"nobody": 1}, "train"),
        ({"trainer": {"samples_per_batch": 4}}, "sft"),
        ({"trainer": {"samples_per_batch": -4}}, "sft"),
        ({"trainer": {"pairs_per_batch": 4}, "beta": 0.2}, "dpo"),
        ({"trainer": {"pairs_per_batch": 4}, "margin": 0.2}, "rm"),
        ({"trainer": {"pairs_per_batch": 4}, "loss": "ipo"}, "dpo"),
        ({"trainer": {"pairs_per_batch": 4}, "reward": {}}, "train"),
    ],
)
def test_the_keys_tell(more: dict[str, Any], kind: str) -> None:
    assert recognised({**SECTIONS, **more}) == kind


def test_overrides_count() -> None:
    pairs = {**SECTIONS, "trainer": {"pairs_per_batch": 4}}
    with pytest.raises(ConfigError, match=r"of headrace rm and of headrace dpo alike; .* by --kind rm or --kind dpo"):
        recognised(pairs)
    assert recognised(pairs, ["beta=0.3"]) == "dpo"


def test_a_config_has_a_command() -> None:
    assert command_of(SFTConfig.model_validate(SECTIONS)) == "sft"
    assert command_of(DPOConfig.model_validate(SECTIONS)) == "dpo"
