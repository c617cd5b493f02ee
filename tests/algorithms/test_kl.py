import math

import pytest
import torch

from headrace.algorithms import kl

P = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
Q = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)

_KINDS: tuple[kl.Kind, ...] = ("k1", "k2", "k3", "abs")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # d = log p - log q = log 2, 0, -log 2.
        ("k1", [math.log(2), 0, -math.log(2)]),
        ("k2", [math.log(2) ** 2 / 2, 0, math.log(2) ** 2 / 2]),
        ("k3", [0.5 - 1 + math.log(2), 0, 2 - 1 - math.log(2)]),
        ("abs", [math.log(2), 0, math.log(2)]),
    ],
)
def test_estimates_by_hand(kind: kl.Kind, expected: list[float]) -> None:
    actual = kl.estimate(P.log(), Q.log(), kind=kind)
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(kind: kl.Kind) -> None:
    exact = (P * (P / Q).log()).sum()
    assert (P * kl.estimate(P.log(), Q.log(), kind=kind)).sum().item() == pytest.approx(exact.item(), abs=1e-12)


def test_k3_is_never_negative_and_exact_near_zero() -> None:
    tiny = torch.logspace(-9, 0, 200, dtype=torch.float64)
    d = torch.cat([tiny, -tiny])
    k3 = kl.estimate(d, torch.zeros_like(d), kind="k3")
    assert (k3 >= 0).all()
    small = d.abs() < 1e-4
    torch.testing.assert_close(k3[small], d[small] ** 2 / 2, rtol=1e-4, atol=1e-16)


def test_nothing_is_clamped() -> None:
    far = kl.estimate(torch.tensor([-60.0]), torch.tensor([0.0]), kind="k3")
    assert far.item() == pytest.approx(math.exp(60) - 61, rel=1e-6)


def test_gradients_by_hand() -> None:
    # k2: d. k3: 1 - exp(-d).
    for kind, gradient in (("k2", lambda d: d), ("k3", lambda d: 1 - torch.exp(-d))):
        d = torch.tensor([-1.5, 0.0, 0.3], dtype=torch.float64, requires_grad=True)
        kl.estimate(d, torch.zeros(3, dtype=torch.float64), kind=kind).sum().backward()
        torch.testing.assert_close(d.grad, gradient(d.detach()), rtol=0, atol=1e-12)


def test_as_a_constant_only_k1_has_the_gradient_of_the_kl() -> None:
    """By hand: p = softmax(t, 0) = (.6, .4), q = (.5, .5). d KL / dt = .6 * .4 * (log 1.2 - log .8) = .0973; as a
    constant c in the reward the gradient is E[c d log p / dt] = .6 * .4 * (c of the first - c of the second)."""
    p, q = torch.tensor([0.6, 0.4], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    score = torch.tensor([0.4, -0.6], dtype=torch.float64)
    pushed = {kind: float((p * kl.estimate(p.log(), q.log(), kind=kind) * score).sum()) for kind in _KINDS}
    assert pushed == pytest.approx({"k1": 0.0973, "k2": -0.0020, "k3": -0.0027, "abs": -0.0098}, abs=5e-5)


def test_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match=r"'k4'.*'k1'"):
        kl.estimate(P, Q, kind="k4")


def test_gradients_flow_through_the_policy_alone() -> None:
    for kind in ("k1", "k2", "k3", "abs"):
        logprobs, reference = P.clone().requires_grad_(), Q.clone().requires_grad_()
        kl.estimate(logprobs, reference, kind=kind).sum().backward()
        assert logprobs.grad is not None
        assert reference.grad is None


def test_k3s_value_with_k2s_gradient() -> None:
    d = torch.tensor([-1.5, 0.0, 0.3], dtype=torch.float64, requires_grad=True)
    zero = torch.zeros(3, dtype=torch.float64)
    value = kl.k3_with_k2_gradient(d, zero)
    torch.testing.assert_close(value.detach(), kl.estimate(d.detach(), zero, kind="k3"), rtol=0, atol=1e-15)
    value.sum().backward()
    torch.testing.assert_close(d.grad, d.detach(), rtol=0, atol=1e-15)
