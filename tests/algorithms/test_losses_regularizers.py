import math

import pytest
import torch

from headrace.algorithms import kl
from headrace.algorithms.losses import entropy, kl_term

F64 = torch.float64
NAN = math.nan
MASK = torch.tensor([True, False, True])
D = torch.tensor([0.3, NAN, -1.5], dtype=F64)


@pytest.mark.parametrize(
    ("kind", "value", "gradient"),
    [
        ("k1", lambda d: d, lambda d: 1),
        ("k2", lambda d: d * d / 2, lambda d: d),
        ("k3", lambda d: math.exp(-d) - 1 + d, lambda d: 1 - math.exp(-d)),
        ("abs", abs, lambda d: math.copysign(1, d)),
        ("k3+", lambda d: math.exp(-d) - 1 + d, lambda d: d),
    ],
)
def test_kl_term_by_hand(kind: kl.Kind, value, gradient) -> None:
    logprobs, reference = (D - 2).requires_grad_(), torch.full((3,), -2, dtype=F64).requires_grad_()
    loss = kl_term(logprobs, reference, MASK, kind=kind)
    assert loss.per_token.tolist() == pytest.approx([value(0.3), 0, value(-1.5)], abs=1e-12)
    assert loss.stats["kl"].item() == pytest.approx(value(0.3) + value(-1.5), abs=1e-12)
    assert loss.stats["tokens"].item() == 2
    loss.per_token.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([gradient(0.3), 0, gradient(-1.5)], abs=1e-12)
    assert reference.grad is None


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match="'k2\\+'"):
        kl_term(D, D, MASK, kind="k2+")


def test_entropy_by_hand() -> None:
    # Even over 4; masked out; 1/2, 1/4, 1/4 with one impossible.
    logits = torch.tensor(
        [[7.0, 7.0, 7.0, 7.0], [NAN, 0, 0, 0], [math.log(2), 0, -math.inf, 0]], dtype=F64, requires_grad=True
    )
    loss = entropy(logits, MASK)
    assert loss.per_token.tolist() == pytest.approx([-math.log(4), 0, -1.5 * math.log(2)], abs=1e-12)
    assert loss.stats["entropy"].item() == pytest.approx(math.log(4) + 1.5 * math.log(2), abs=1e-12)
    loss.per_token.sum().backward()
    # d(-H) / d logit = p (log p + H).
    third = [p * (math.log(p) + 1.5 * math.log(2)) if p else 0.0 for p in (0.5, 0.25, 0, 0.25)]
    assert logits.grad.flatten().tolist() == pytest.approx([0.0] * 8 + third, abs=1e-12)


def test_entropy_agrees_with_torchs_own_and_of_nothing_is_nothing() -> None:
    logits = torch.randn(5, 11, dtype=F64, generator=torch.Generator().manual_seed(3)) * 4
    mask = torch.tensor([True, True, False, True, True])
    expected = torch.where(mask, -torch.distributions.Categorical(logits=logits).entropy(), 0.0)
    torch.testing.assert_close(entropy(logits, mask).per_token, expected, rtol=1e-12, atol=1e-12)
    nothing = entropy(logits.requires_grad_(), torch.zeros_like(mask))
    nothing.per_token.sum().backward()
    assert nothing.per_token.tolist() == [0.0] * 5
    assert entropy(logits.detach().bfloat16(), mask).per_token.dtype == torch.float32
