"""What a config says of truncated sampling."""

from __future__ import annotations

import pytest

from headrace.config.rollout import SamplingConfig


@pytest.mark.parametrize(
    ("given", "top_k", "truncates"),
    [
        ({}, 0, False),
        ({"top_p": 1.0}, 0, False),
        ({"top_p": 0.9}, 512, True),
        ({"top_p": 0.9, "top_k": None}, 512, True),
        ({"top_p": "0.9"}, 512, True),
        ({"top_p": 0.9, "top_k": 0}, 0, True),
        ({"top_p": 0.9, "top_k": 20}, 20, True),
        ({"top_k": 20}, 20, True),
    ],
)
def test_top_p_alone_keeps_at_most_512(given: dict[str, object], top_k: int, truncates: bool) -> None:
    sampling = SamplingConfig.model_validate(given)
    assert sampling.top_k == top_k
    assert sampling.truncates is truncates
    assert SamplingConfig.model_validate(sampling.model_dump()) == sampling
