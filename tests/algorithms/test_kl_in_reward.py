"""Whose KL the reward pays for: the policy's that sampled the token, or the one's that the batch begins with."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headrace.algorithms.estimate import AdvantageEstimator, Compared
from headrace.algorithms.pieces import Pieces
from headrace.algorithms.recipes import check_dataflow, compose
from headrace.config.algorithm import AlgorithmConfig

F64 = torch.float64
BETA = 0.1
MASK = torch.tensor([False, True, True, True])
INDEX = torch.zeros(4, dtype=torch.int64)


def token_rewards(of: str, behavior: list[float], proximal: list[float] | None, **changes: object) -> list[float]:
    """Of one sample of three tokens with reward 0: with gamma 0 and values of 0 an advantage is the token's reward."""
    kl = {"coefficient": BETA, "place": "reward", "estimator": "k1", "of": of, **changes}
    config = AlgorithmConfig(advantage="gae", gamma=0.0, kl=kl)  # type: ignore[arg-type]
    data = Compared(
        torch.zeros(1, dtype=F64),
        torch.tensor([0]),
        torch.tensor([0]),
        MASK,
        INDEX,
        torch.tensor([0.0, *behavior], dtype=F64),
        reference=torch.tensor([0.0, -1.0, -1.0, -1.0], dtype=F64),
        values=torch.zeros(4, dtype=F64),
        proximal=None if proximal is None else torch.tensor([0.0, *proximal], dtype=F64),
    )
    return [float(value) for value in AdvantageEstimator(config, max_length=9)(data)["advantages"][1:]]


def test_by_hand() -> None:
    """k1 is log-prob + 1. The second token grew likelier since it was sampled, the third less likely."""
    behavior, proximal = [-1.5, -1.5, -1.5], [-1.5, -0.5, -2.0]
    assert token_rewards("behavior", behavior, None) == pytest.approx([0.05, 0.05, 0.05])
    assert token_rewards("proximal", behavior, proximal) == pytest.approx([0.05, -0.05, 0.1])


logprobs = st.lists(st.floats(-8, 0), min_size=3, max_size=3)


@settings(max_examples=60, deadline=None)
@given(logprobs, logprobs)
def test_the_error_of_the_behaviours_is_a_bonus_on_what_grew_likelier(behavior, proximal) -> None:
    """As docs/recipes.md states it: beta log(proximal / behaviour)."""
    taken, right = token_rewards("behavior", behavior, None), token_rewards("proximal", behavior, proximal)
    for t in range(3):
        bonus = BETA * (proximal[t] - behavior[t])
        assert taken[t] - right[t] == pytest.approx(bonus, abs=1e-12)
        assert (bonus > 0) == (proximal[t] > behavior[t]) or math.isclose(proximal[t], behavior[t])


@settings(max_examples=30, deadline=None)
@given(logprobs, st.sampled_from(["k1", "k2", "k3", "abs"]))
def test_on_fresh_tokens_both_are_the_same(behavior, estimator) -> None:
    of_behavior = token_rewards("behavior", behavior, None, estimator=estimator)
    assert token_rewards("proximal", behavior, behavior, estimator=estimator) == of_behavior


def test_an_estimator_of_the_users_own_is_given_the_one_that_is_named() -> None:
    kl = {"coefficient": BETA, "place": "reward", "estimator": "mine.py:f", "of": "proximal"}
    config = AlgorithmConfig(advantage="mean_only", kl=kl)  # type: ignore[arg-type]
    proximal = torch.full((4,), -2.0, dtype=F64)
    seen: list[torch.Tensor] = []

    def estimator(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
        seen.append(policy)
        return policy - reference

    data = Compared(
        torch.zeros(1, dtype=F64),
        torch.tensor([0]),
        torch.tensor([0]),
        MASK,
        INDEX,
        torch.zeros(4, dtype=F64),
        reference=torch.zeros(4, dtype=F64),
        proximal=proximal,
    )
    AdvantageEstimator(config, max_length=9, pieces=Pieces(kl=estimator))(data)
    assert seen == [proximal]


def test_a_missing_pass_is_named() -> None:
    with pytest.raises(ValueError, match=r"kl\.of is proximal, which needs its log-probs"):
        token_rewards("proximal", [0.0] * 3, None)


REWARD = {"coefficient": 0.1, "place": "reward", "of": "proximal"}


@pytest.mark.parametrize("proximal", ["loglinear", "mine.py:f"])
def test_log_probs_that_are_worked_out_without_a_pass_are_refused(proximal: str) -> None:
    with pytest.raises(ValidationError, match=r"kl\.of is proximal.*use proximal: recompute, or kl\.of: behavior"):
        AlgorithmConfig(proximal=proximal, updates_per_batch=2, kl=REWARD)  # type: ignore[arg-type]
    AlgorithmConfig(proximal=proximal, updates_per_batch=2, kl={**REWARD, "of": "behavior"})  # type: ignore[arg-type]
    AlgorithmConfig(proximal=proximal, updates_per_batch=2, kl={**REWARD, "place": "loss"})  # type: ignore[arg-type]


@pytest.mark.parametrize(("updates", "read_by"), [(1, ["advantages"]), (2, ["advantages", "actor"])])
def test_rows_are_scored_once_their_batch_is_composed(updates: int, read_by: list[str]) -> None:
    config = AlgorithmConfig(kl=REWARD, updates_per_batch=updates)  # type: ignore[arg-type]
    recipe = compose(config, own_proximal=True)
    stages = {stage.name: stage for stage in check_dataflow(recipe.stages)}
    assert "batch" in stages["proximal"].reads
    assert [name for name, stage in stages.items() if "proximal" in stage.reads] == read_by
    assert not compose(AlgorithmConfig(kl={**REWARD, "of": "behavior"})).has("proximal")  # type: ignore[arg-type]
