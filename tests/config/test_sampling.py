"""What a config says of truncated sampling, and whose sampling holds."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from headrace.config import TrainConfig
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


def config(gateway: str, sampling: dict[str, object], **rollout: object) -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "model": {"path": "m"},
            "data": {"train": "t.jsonl"},
            "gateway": {"sampling": gateway},
            "rollout": {"sampling": sampling, **rollout},
        }
    )


@pytest.mark.parametrize(
    ("gateway", "given", "truncates", "most_kept"),
    [
        ("run", {}, False, 0),
        ("run", {"top_k": 20}, True, 20),
        ("client", {}, True, 512),
        ("client", {"top_k": 20}, True, 512),
        ("client", {"top_k": 600}, True, 600),
        ("client", {"top_p": 0.9, "top_k": 0}, True, 0),
    ],
)
def test_clients_may_have_512_ids_kept_or_as_many_as_the_run(
    gateway: str, given: dict[str, object], truncates: bool, most_kept: int
) -> None:
    found = config(gateway, given, agent="agent.py:solve")
    assert (found.truncates, found.most_kept) == (truncates, most_kept)


@pytest.mark.parametrize("rollout", [{}, {"agent": "agent.py:solve", "function": "mine.py:roll"}])
def test_clients_sample_only_where_an_agent_plays(rollout: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=r"gateway\.sampling is client, and no agent plays"):
        config("client", {}, **rollout)
