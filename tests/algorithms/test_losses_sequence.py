import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.aggregation import aggregate
from headrace.algorithms.losses import Loss, geometric_mean, gspo

F64 = torch.float64
NAN = math.nan


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def close(actual: torch.Tensor | None, expected: torch.Tensor) -> None:
    assert actual is not None
    torch.testing.assert_close(actual.detach(), expected, rtol=1e-10, atol=1e-10)


# Sample 2: ratios 2 and 8, with the environment's token between: geometric mean 4. Sample 3: 1/2, 1/2, 1. Sample 5:
# nothing trained.
RATIOS = tensor(2, NAN, 8, 0.5, 0.5, 1, NAN)
MASK = torch.tensor([True, False, True, True, True, True, False])
SAMPLES = torch.tensor([2, 2, 2, 3, 3, 3, 5])
ROOT = 0.25 ** (1 / 3)


def run(function, advantages: torch.Tensor, **options: float) -> tuple[Loss, torch.Tensor | None]:
    logprobs = (RATIOS.log() - 1.3).requires_grad_()
    proximal = torch.full_like(RATIOS, -1.3)
    loss = function(logprobs, proximal, advantages, MASK, SAMPLES, **options)
    loss.per_token.sum().backward()
    return loss, logprobs.grad


def test_gspo_takes_one_ratio_for_all_tokens_of_a_sample() -> None:
    advantages = tensor(-1, NAN, -1, 2, 2, 2, NAN)
    loss, gradient = run(gspo, advantages, clip_low=0.2, clip_high=0.3)
    # Nothing clips: a loss is not bounded from above, a gain not from below.
    expected = tensor(4, 0, 4, -2 * ROOT, -2 * ROOT, -2 * ROOT, 0)
    close(loss.per_token, expected)
    close(gradient, expected)
    assert loss.stats["clipped"].item() == 0
    assert loss.stats["ratio"].item() == pytest.approx(8 + 3 * ROOT)
    assert loss.stats["tokens"].item() == 5


def test_gspo_clips_whole_samples() -> None:
    loss, gradient = run(gspo, tensor(1, NAN, 1, -2, -2, -2, NAN), clip_low=0.2, clip_high=0.3)
    close(loss.per_token, tensor(-1.3, 0, -1.3, 1.6, 1.6, 1.6, 0))
    close(gradient, torch.zeros(7, dtype=F64))
    assert loss.stats["clipped"].item() == 5


def test_gspos_token_form_has_the_gradient_of_the_samples_ratio() -> None:
    advantages = tensor(-1, 0, -1, 2, 2, 2, 0)
    log_ratios = RATIOS.nan_to_num(1.0).log().requires_grad_()
    loss = gspo(log_ratios, torch.zeros(7, dtype=F64), advantages, MASK, SAMPLES, clip_low=0.2, clip_high=0.3)
    numerator, _ = aggregate(loss.per_token, MASK, SAMPLES, mode="sample_mean")
    token_form = torch.autograd.grad(numerator, log_ratios)[0]
    first, second = log_ratios[[0, 2]].mean().exp(), log_ratios[3:6].mean().exp()
    close(token_form, torch.autograd.grad(first - 2 * second, log_ratios)[0])


def test_geometric_mean_clips_tokens_before_the_mean() -> None:
    # Gains: log-ratios up to 0.4. Losses: down to -0.3, which bounds both halves.
    advantages = tensor(1, NAN, 1, -2, -2, -2, NAN)
    loss, gradient = run(geometric_mean, advantages, clip_low=0.3, clip_high=0.4)
    high, low = math.exp(0.4), math.exp(-0.2)
    close(loss.per_token, tensor(-high, 0, -high, 2 * low, 2 * low, 2 * low, 0))
    # Summed over the sample's three tokens, the one that was not clipped has 3 * 2 low / 3.
    close(gradient, tensor(0, 0, 0, 0, 0, 2 * low, 0))
    assert loss.stats["clipped"].item() == 4


def test_geometric_mean_does_not_bound_the_other_side() -> None:
    loss, gradient = run(geometric_mean, tensor(-1, NAN, -1, 2, 2, 2, NAN))
    expected = tensor(4, 0, 4, -2 * ROOT, -2 * ROOT, -2 * ROOT, 0)
    close(loss.per_token, expected)
    close(gradient, expected)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (gspo, {"clip_low": 1.2, "clip_high": 0.2}, "clip_low is 1.2"),
        (gspo, {"clip_low": 0.2, "clip_high": -0.2}, "clip_high is -0.2"),
        (geometric_mean, {"clip_low": -0.2}, "clip_low is -0.2"),
        (geometric_mean, {"clip_high": -0.2}, "clip_high is -0.2"),
    ],
)
def test_bad_bounds_are_named(function, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(function, torch.zeros(7, dtype=F64), **options)


@pytest.mark.parametrize("function", [gspo, geometric_mean])
def test_ratios_beyond_floats_range_leave_gradients_finite(function) -> None:
    # A sample far above with a gain and one far below with a loss; the token between is not trained.
    logprobs = torch.tensor([2000.0, NAN, 2000.0, -2000.0], requires_grad=True)
    mask, samples = torch.tensor([True, False, True, True]), torch.tensor([0, 0, 0, 1])
    advantages = torch.tensor([1.0, NAN, 1.0, -1.0])
    loss = function(logprobs, torch.zeros(4), advantages, mask, samples, clip_low=0.2, clip_high=0.2)
    loss.per_token.sum().backward()
    assert loss.per_token.isfinite().all()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0] * 4


@pytest.mark.parametrize("function", [gspo, geometric_mean])
def test_a_loss_beyond_floats_range_stays_inside_the_mask(function) -> None:
    logprobs = torch.tensor([2000.0, 0.0], requires_grad=True)
    mask, samples = torch.tensor([True, False]), torch.tensor([0, 0])
    loss = function(logprobs, torch.zeros(2), -torch.ones(2), mask, samples, clip_low=0.2, clip_high=0.2)
    loss.per_token.sum().backward()
    assert loss.per_token.tolist() == [math.inf, 0.0]
    assert logprobs.grad is not None
    assert logprobs.grad[1].item() == 0.0


token = st.tuples(st.floats(-1, 1), st.booleans())


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-2, 2), st.lists(token, min_size=1, max_size=6)), min_size=1, max_size=5),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_agree_with_the_published_formulas(samples, clip_low, clip_high) -> None:
    rows = [(index, a, *row) for index, (a, tokens) in enumerate(samples) for row in tokens]
    index, advantages, log_ratios, mask = (torch.tensor(column) for column in zip(*rows, strict=True))
    zero = torch.zeros(len(rows), dtype=F64)
    given_all = (log_ratios.to(F64), zero, advantages.to(F64), mask, index)
    by_sequence = gspo(*given_all, clip_low=clip_low, clip_high=clip_high).per_token
    by_mean = geometric_mean(*given_all, clip_low=clip_low, clip_high=clip_high).per_token
    place = 0
    # As the functions were given them: through torch's default dtype, which is narrower.
    narrow = iter(zip(log_ratios.tolist(), advantages.tolist(), strict=True))
    for _, tokens in samples:
        pairs = [next(narrow) for _ in tokens]
        a = pairs[0][1]
        inside = [pair[0] for pair, (_, trained) in zip(pairs, tokens, strict=True) if trained]
        if inside:
            s = math.exp(math.fsum(inside) / len(inside))
            objective = min(s * a, min(max(s, 1 - clip_low), 1 + clip_high) * a)
            sign = math.copysign(1, a)
            limited = [sign * min(sign * x, sign * min(max(x, -clip_low), clip_high)) for x in inside]
            geometric = math.exp(math.fsum(limited) / len(limited)) * a
        for _, trained in tokens:
            assert by_sequence[place].item() == pytest.approx(-objective if trained else 0, abs=1e-10)
            assert by_mean[place].item() == pytest.approx(-geometric if trained else 0, abs=1e-10)
            place += 1
