import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.algorithms import proximal

F64 = torch.float64


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


CURRENT, BEHAVIOR, RECOMPUTED = tensor(-1, -4, -2), tensor(-3, -1, -2), tensor(-2, -2, -5)
VERSIONS = torch.tensor([3, 6, -1], dtype=torch.int32)


def test_loglinear_by_hand() -> None:
    # Versions 3, 6 and none; proximal 7, current 8: shares 4/5, 1/2, 0.
    actual = proximal.loglinear(CURRENT, BEHAVIOR, VERSIONS, proximal_version=7, current_version=8)
    torch.testing.assert_close(actual, tensor(-3 + 0.8 * 2, -1 - 1.5, -2), rtol=1e-12, atol=1e-12)


def test_fresh_tokens_keep_the_log_probs_that_they_were_sampled_with() -> None:
    for version in (7, 8, 9):
        actual = proximal.loglinear(CURRENT, BEHAVIOR, torch.full((3,), version), proximal_version=7, current_version=8)
        assert torch.equal(actual, BEHAVIOR)


def test_when_the_current_version_is_the_proximal_one_older_tokens_take_the_current_log_probs() -> None:
    actual = proximal.loglinear(CURRENT, BEHAVIOR, torch.tensor([3, 6, 2]), proximal_version=7, current_version=7)
    assert torch.equal(actual, CURRENT)


@given(st.integers(0, 20), st.integers(0, 8), st.integers(0, 4), st.floats(-5, 5), st.floats(-0.5, 0.5))
def test_exact_where_the_log_prob_moved_by_the_same_amount_with_every_version(
    sampled, behind, ahead, start, step
) -> None:
    prox, current = sampled + behind, sampled + behind + ahead
    actual = proximal.loglinear(
        tensor(start + step * (current - sampled)),
        tensor(start),
        torch.tensor([sampled]),
        proximal_version=prox,
        current_version=current,
    )
    assert actual.item() == pytest.approx(start + step * (prox - sampled), abs=1e-10)


def test_each_kind() -> None:
    current = CURRENT.clone().requires_grad_()
    versions = {"versions": VERSIONS, "proximal_version": 7, "current_version": 8}
    given_all = {"current": current, "behavior": BEHAVIOR, "recomputed": RECOMPUTED, **versions}
    expected = {
        "current": CURRENT,
        "behavior": BEHAVIOR,
        "recompute": RECOMPUTED,
        "loglinear": proximal.loglinear(CURRENT, BEHAVIOR, **versions),
    }
    for kind, logprobs in expected.items():
        actual = proximal.logprobs(kind, **given_all)
        assert torch.equal(actual, logprobs)
        assert not actual.requires_grad


def test_masked_places_may_hold_anything() -> None:
    actual = proximal.loglinear(
        tensor(-1, math.nan), tensor(-1, 0), torch.tensor([0, -1]), proximal_version=1, current_version=2
    )
    assert actual[0].item() == -1


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="needs the recomputed"):
        proximal.logprobs("recompute", current=CURRENT, behavior=BEHAVIOR)
    with pytest.raises(ValueError, match="needs versions"):
        proximal.logprobs("loglinear", current=CURRENT, behavior=BEHAVIOR, versions=VERSIONS)
    with pytest.raises(ValueError, match=r"'linear'.*'loglinear'"):
        proximal.logprobs("linear", current=CURRENT, behavior=BEHAVIOR)
    with pytest.raises(ValueError, match="proximal_version is 9, after current_version 8"):
        proximal.loglinear(CURRENT, BEHAVIOR, VERSIONS, proximal_version=9, current_version=8)
