import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.losses import Loss, clipped_surrogate

F64 = torch.float64


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def of_ratios(ratios: torch.Tensor, advantages: torch.Tensor, **options: float) -> tuple[Loss, torch.Tensor]:
    """The loss at these ratios, and its gradient by log-prob."""
    proximal = torch.full_like(ratios, -1.3)
    logprobs = (proximal + ratios.log()).requires_grad_()
    mask = torch.ones_like(ratios, dtype=torch.bool)
    loss = clipped_surrogate(logprobs, proximal, advantages, mask, **options)
    loss.per_token.sum().backward()
    assert logprobs.grad is not None
    return loss, logprobs.grad


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def test_the_clip_binds_above_for_gains_and_below_for_losses() -> None:
    ratios = tensor(0.5, 1.1, 1.5, 0.5, 0.9, 1.5)
    advantages = tensor(2, 2, 2, -3, -3, -3)
    loss, gradient = of_ratios(ratios, advantages, clip_low=0.2, clip_high=0.28)
    close(loss.per_token, tensor(-1.0, -2.2, -2.56, 2.4, 2.7, 4.5))
    # d(-r A) / d log p = -r A where the clip does not bind, else 0.
    close(gradient, tensor(-1.0, -2.2, 0, 0, 2.7, 4.5))
    assert loss.stats["clipped"].item() == 2
    assert loss.stats["tokens"].item() == 6


def test_dual_clip_bounds_the_loss_of_a_bad_token() -> None:
    ratios, advantages = tensor(2.9, 3.5, 3.5), tensor(-1, -1, 1)
    loss, gradient = of_ratios(ratios, advantages, clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    close(loss.per_token, tensor(2.9, 3.0, -1.2))
    close(gradient, tensor(2.9, 0, 0))
    assert loss.stats["clipped"].item() == 2


def test_a_token_without_an_advantage_has_nothing_to_clip() -> None:
    loss, gradient = of_ratios(tensor(9, 0.01), tensor(0, 0), clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    close(gradient, tensor(0, 0))
    assert loss.stats["clipped"].item() == 0


def test_stats_are_taken_before_the_clip() -> None:
    loss, _ = of_ratios(tensor(0.5, 4.0), tensor(1, 1), clip_low=0.1, clip_high=0.1)
    assert loss.stats["ratio"].item() == pytest.approx(4.5)
    # k3 of KL(proximal || current): r - 1 - log r.
    assert loss.stats["kl"].item() == pytest.approx((0.5 - 1 - math.log(0.5)) + (4 - 1 - math.log(4)), abs=1e-10)


def test_what_is_masked_out_has_no_influence_even_when_it_is_not_a_number() -> None:
    nan, inf = math.nan, math.inf
    logprobs = tensor(-1.0, nan, -inf, 3.0).requires_grad_()
    proximal = tensor(-1.0, 0.0, inf, nan)
    mask = torch.tensor([True, False, False, False])
    loss = clipped_surrogate(logprobs, proximal, tensor(2.0, inf, nan, 1), mask, clip_low=0.2, clip_high=0.2)
    loss.per_token.sum().backward()
    close(loss.per_token, tensor(-2.0, 0, 0, 0))
    assert logprobs.grad is not None
    close(logprobs.grad, tensor(-2.0, 0, 0, 0))
    assert {name: stat.item() for name, stat in loss.stats.items()} == {
        "tokens": 1,
        "ratio": 1,
        "kl": 0,
        "clipped": 0,
    }


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_ratio_beyond_floats_range_leaves_gradients_finite(dtype: torch.dtype) -> None:
    logprobs = torch.tensor([0.0, -2000.0], dtype=dtype, requires_grad=True)
    proximal = torch.tensor([-2000.0, 0.0], dtype=dtype)
    mask = torch.tensor([True, True])
    loss = clipped_surrogate(
        logprobs, proximal, torch.tensor([1.0, -1.0], dtype=dtype), mask, clip_low=0.2, clip_high=0.2
    )
    loss.per_token.sum().backward()
    torch.testing.assert_close(loss.per_token.detach(), torch.tensor([-1.2, 0.8], dtype=dtype))
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, 0.0]


def test_gradients_flow_through_the_current_policy_alone() -> None:
    logprobs, proximal, advantages = (tensor(-1.0, -2.0).requires_grad_() for _ in range(3))
    mask = torch.tensor([True, True])
    loss = clipped_surrogate(logprobs, proximal, advantages, mask, clip_low=0.2, clip_high=0.2)
    loss.per_token.sum().backward()
    assert proximal.grad is None
    assert advantages.grad is None
    assert logprobs.grad is not None


def test_dtypes() -> None:
    mask = torch.tensor([True])
    for given_dtype, result in ((F64, F64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)):
        x = torch.tensor([-1.0], dtype=given_dtype)
        loss = clipped_surrogate(x, x, x, mask, clip_low=0.2, clip_high=0.2)
        assert loss.per_token.dtype == result
        assert {stat.dtype for stat in loss.stats.values()} == {result}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_low": 1.2, "clip_high": 0.2}, "clip_low is 1.2"),
        ({"clip_low": -0.1, "clip_high": 0.2}, "clip_low is -0.1"),
        ({"clip_low": 0.2, "clip_high": -0.2}, "clip_high is -0.2"),
        ({"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 1.0}, "dual_clip is 1.0"),
    ],
)
def test_bad_bounds_are_named(options: dict[str, float], message: str) -> None:
    x, mask = tensor(0.0), torch.tensor([True])
    with pytest.raises(ValueError, match=message):
        clipped_surrogate(x, x, x, mask, **options)


tokens = st.lists(
    st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.floats(-5, 5), st.booleans()), min_size=1, max_size=20
)


@settings(max_examples=100, deadline=None)
@given(tokens, st.floats(0, 1), st.floats(0, 2), st.none() | st.floats(1.01, 5))
def test_agrees_with_the_published_formula(rows, clip_low, clip_high, dual_clip) -> None:
    logprobs, proximal, advantages = (tensor(*column) for column in list(zip(*rows, strict=True))[:3])
    mask = torch.tensor([row[3] for row in rows])
    loss = clipped_surrogate(
        logprobs, proximal, advantages, mask, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    for place, (log_p, log_q, a, inside) in enumerate(rows):
        r = math.exp(log_p - log_q)
        objective = min(r * a, min(max(r, 1 - clip_low), 1 + clip_high) * a)
        if dual_clip is not None and a < 0:
            objective = max(objective, dual_clip * a)
        assert loss.per_token[place].item() == pytest.approx(-objective if inside else 0.0, rel=1e-10, abs=1e-10)


@settings(max_examples=30, deadline=None)
@given(tokens)
def test_gradient_agrees_with_finite_differences(rows) -> None:
    logprobs, proximal, advantages = (tensor(*column) for column in list(zip(*rows, strict=True))[:3])
    mask = torch.tensor([row[3] for row in rows])
    ratio = (logprobs - proximal).exp()
    near_a_corner = ((ratio - 0.8).abs() < 1e-4) | ((ratio - 1.28).abs() < 1e-4) | ((ratio - 3).abs() < 1e-4)
    logprobs = torch.where(near_a_corner, logprobs + 0.01, logprobs).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: (
            clipped_surrogate(x, proximal, advantages, mask, clip_low=0.2, clip_high=0.28, dual_clip=3.0).per_token
        ),
        (logprobs,),
        eps=1e-7,
        atol=1e-4,
    )
