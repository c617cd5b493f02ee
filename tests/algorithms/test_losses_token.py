import math

import pytest
import torch

from headrace.algorithms import losses
from headrace.algorithms.losses import Loss

F64 = torch.float64


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def close(actual: torch.Tensor | None, expected: torch.Tensor) -> None:
    assert actual is not None
    torch.testing.assert_close(actual.detach(), expected, rtol=1e-10, atol=1e-10)


def of_ratios(function, ratios: torch.Tensor, advantages: torch.Tensor, **options) -> tuple[Loss, torch.Tensor]:
    """The loss at these ratios to a proximal policy with log-probs of -1.3, and its gradient by log-prob."""
    proximal = torch.full_like(ratios, -1.3)
    logprobs = (proximal + ratios.log()).requires_grad_()
    loss = function(logprobs, proximal, advantages, torch.ones_like(ratios, dtype=torch.bool), **options)
    loss.per_token.sum().backward()
    assert logprobs.grad is not None
    return loss, logprobs.grad


RATIOS, ADVANTAGES = tensor(0.5, 1.1, 1.5, 0.5, 0.9, 1.5), tensor(2, 2, 2, -3, -3, -3)


def test_cispo_clips_the_weight_and_keeps_every_gradient() -> None:
    loss, gradient = of_ratios(losses.cispo, RATIOS, ADVANTAGES, clip_low=0.2, clip_high=0.28)
    weights = tensor(0.8, 1.1, 1.28, 0.8, 0.9, 1.28)
    close(gradient, -weights * ADVANTAGES)
    close(loss.per_token, -weights * ADVANTAGES * (-1.3 + RATIOS.log()))
    assert loss.stats["clipped"].item() == 4
    assert loss.stats["ratio"].item() == pytest.approx(6)


def test_cispo_without_a_lower_bound() -> None:
    _, gradient = of_ratios(losses.cispo, tensor(1e-9, 9), tensor(1, 1), clip_low=1.0, clip_high=4.0)
    close(gradient, tensor(-1e-9, -5))


def test_sapo_by_hand() -> None:
    # Gates at r = 1: (4 / tau) / 2 = 2 / tau; the slope there is 1, so the gradient is -A.
    loss, gradient = of_ratios(losses.sapo, tensor(1, 1), tensor(2, -3), tau_positive=0.5, tau_negative=2.0)
    close(loss.per_token, tensor(-2 * 4, 3 * 1))
    close(gradient, tensor(-2, 3))
    # At r = 1 + log(3) the sigmoid of r - 1 is 3/4, its slope 3/16.
    r = 1 + math.log(3)
    loss, gradient = of_ratios(losses.sapo, tensor(r, r), tensor(1, -1), tau_positive=1.0, tau_negative=1.0)
    close(loss.per_token, tensor(-3, 3))
    close(gradient, tensor(-r * 3 / 4, r * 3 / 4))


def test_sapos_defaults_hold_losses_a_little_tighter() -> None:
    loss, _ = of_ratios(losses.sapo, tensor(2, 2, 2), tensor(1, -1, 0))
    close(loss.per_token, tensor(-4 / (1 + math.exp(-1)), 4 / 1.05 / (1 + math.exp(-1.05)), 0))


def test_m2po_is_the_plain_ratio_where_kept() -> None:
    proximal = torch.full_like(RATIOS, -1.3)
    logprobs = (proximal + RATIOS.log()).requires_grad_()
    mask = torch.tensor([True, True, True, True, False, True])
    kept = torch.tensor([True, True, False, True, True, False])
    loss = losses.m2po(logprobs, proximal, ADVANTAGES, mask, kept)
    expected = tensor(-1, -2.2, 0, 1.5, 0, 0)
    close(loss.per_token, expected)
    loss.per_token.sum().backward()
    close(logprobs.grad, expected)
    # Rejected tokens count, those masked out do not.
    assert (loss.stats["tokens"].item(), loss.stats["clipped"].item()) == (5, 2)
    assert loss.stats["ratio"].item() == pytest.approx(0.5 + 1.1 + 1.5 + 0.5 + 1.5)


LOGPROBS = tensor(-1, -2, -4, math.nan)
MASK = torch.tensor([True, True, True, False])


def test_reinforce_and_sft_by_hand() -> None:
    for loss, gradient in (
        (lambda x: losses.reinforce(x, tensor(3, 0, -1, math.inf), MASK), tensor(-3, 0, 1, 0)),
        (lambda x: losses.sft(x, MASK), tensor(-1, -1, -1, 0)),
    ):
        logprobs = LOGPROBS.clone().requires_grad_()
        actual = loss(logprobs)
        actual.per_token.sum().backward()
        close(logprobs.grad, gradient)
        close(actual.per_token, gradient * LOGPROBS.nan_to_num())
        assert actual.stats["tokens"].item() == 3
        assert actual.stats["logprob"].item() == -7


def test_distillation_is_reverse_kl_with_a_gradient_that_teaches() -> None:
    logprobs = LOGPROBS.clone().requires_grad_()
    teacher = tensor(-3, -1.5, -4, math.nan)
    loss = losses.distillation(logprobs, teacher, MASK)
    close(loss.per_token, tensor(2, -0.5, 0, 0))
    assert loss.stats["kl"].item() == 1.5
    loss.per_token.sum().backward()
    close(logprobs.grad, tensor(2, -0.5, 0, 0))
    as_advantages = losses.distillation_advantages(LOGPROBS, teacher, MASK)
    close(as_advantages, tensor(-2, 0.5, 0, 0))
    again = LOGPROBS.clone().requires_grad_()
    losses.reinforce(again, as_advantages, MASK).per_token.sum().backward()
    close(again.grad, logprobs.grad)


def test_distillations_gradient_is_the_reverse_kls_on_average() -> None:
    # Over a vocabulary of 3: sum of p times the gradient of one sample's estimate against d KL(p || q) / d logits.
    logits, q = tensor(0.3, -1.0, 0.8).requires_grad_(), tensor(0.2, 0.5, 0.3)
    log_p = torch.log_softmax(logits, 0)
    exact = torch.autograd.grad((log_p.exp() * (log_p - q.log())).sum(), logits, retain_graph=True)[0]
    loss = losses.distillation(log_p, q.log(), torch.ones(3, dtype=torch.bool))
    sampled = torch.autograd.grad((log_p.exp().detach() * loss.per_token).sum(), logits)[0]
    close(sampled, exact)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (losses.cispo, {"clip_low": -0.1, "clip_high": 1.0}, "clip_low is -0.1"),
        (losses.cispo, {"clip_low": 0.1, "clip_high": -1.0}, "clip_high is -1.0"),
        (losses.sapo, {"tau_positive": 0.0}, "tau_positive is 0.0"),
        (losses.sapo, {"tau_negative": -1.0}, "tau_negative is -1.0"),
    ],
)
def test_bad_options_are_named(function, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of_ratios(function, tensor(1.0), tensor(1.0), **options)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_ratios_beyond_floats_range_leave_values_and_gradients_finite(dtype: torch.dtype) -> None:
    far = torch.tensor([2000.0, -2000.0, 2000.0, -2000.0], dtype=dtype)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=dtype)
    mask = torch.ones(4, dtype=torch.bool)
    for function, expected, gradient in (
        (losses.sapo, [-4, -4 / (1 + math.e), 4 / 1.05, 4 / 1.05 / (1 + math.exp(1.05))], [0, 0, 0, 0]),
        (
            lambda *given: losses.cispo(*given, clip_low=0.2, clip_high=1.0),
            [-4000, 1600, 4000, -1600],
            [-2, -0.8, 2, 0.8],
        ),
    ):
        logprobs = far.clone().requires_grad_()
        loss = function(logprobs, torch.zeros_like(far), advantages, mask)
        loss.per_token.sum().backward()
        torch.testing.assert_close(loss.per_token.detach(), torch.tensor(expected, dtype=dtype))
        torch.testing.assert_close(logprobs.grad, torch.tensor(gradient, dtype=dtype))


def test_a_rejected_ratio_beyond_floats_range_is_nothing() -> None:
    logprobs = tensor(2000, 0).requires_grad_()
    both, second = torch.tensor([True, True]), torch.tensor([False, True])
    loss = losses.m2po(logprobs, tensor(0, 0), tensor(-1, -1), both, second)
    loss.per_token.sum().backward()
    close(loss.per_token, tensor(0, 1))
    close(logprobs.grad, tensor(0, 1))
