import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.aggregation import aggregate

F64 = torch.float64
MODES = ("token_mean", "sample_mean", "sample_sum")

# Sample 3 has tokens 1, 2 (and one masked out), sample 5 none inside the mask, sample 8 the token 6.
LOSSES = torch.tensor([1.0, math.nan, 2.0, math.inf, 6.0], dtype=F64)
MASK = torch.tensor([True, False, True, False, True])
SAMPLES = torch.tensor([3, 3, 3, 5, 8])


@pytest.mark.parametrize(
    ("mode", "numerator", "denominator"),
    [("token_mean", 9, 3), ("sample_mean", 1.5 + 6, 2), ("sample_sum", 9, 2), ("constant_length", 9, 2 * 10)],
)
def test_by_hand(mode: str, numerator: float, denominator: float) -> None:
    actual = aggregate(LOSSES, MASK, SAMPLES, mode=mode, length=10)
    assert (actual[0].item(), actual[1].item()) == (numerator, denominator)
    assert actual[0].dtype == actual[1].dtype == F64
    assert actual[0].shape == actual[1].shape == ()


@pytest.mark.parametrize(
    ("mode", "gradient"),
    [("token_mean", [1, 0, 1, 0, 1]), ("sample_mean", [0.5, 0, 0.5, 0, 1]), ("sample_sum", [1, 0, 1, 0, 1])],
)
def test_gradient_of_the_numerator(mode: str, gradient: list[float]) -> None:
    losses = LOSSES.clone().requires_grad_()
    numerator, denominator = aggregate(losses, MASK, SAMPLES, mode=mode)
    numerator.backward()
    assert losses.grad is not None
    assert losses.grad.tolist() == gradient
    assert not denominator.requires_grad


@pytest.mark.parametrize("mode", MODES)
def test_nothing_inside_the_mask_gives_zero_over_zero_and_still_differentiates(mode: str) -> None:
    losses = LOSSES.clone().requires_grad_()
    numerator, denominator = aggregate(losses, torch.zeros_like(MASK), SAMPLES, mode=mode)
    numerator.backward()
    assert (numerator.item(), denominator.item()) == (0, 0)
    assert losses.grad is not None
    assert losses.grad.tolist() == [0.0] * 5


def test_a_constant_length_has_to_be_given() -> None:
    with pytest.raises(ValueError, match="no length is given"):
        aggregate(LOSSES, MASK, SAMPLES, mode="constant_length")


def test_unknown_mode_is_named() -> None:
    with pytest.raises(ValueError, match=r"'mean'.*'token_mean'"):
        aggregate(LOSSES, MASK, SAMPLES, mode="mean")


samples_of_tokens = st.lists(
    st.lists(st.tuples(st.floats(-5, 5), st.booleans()), min_size=1, max_size=6), min_size=1, max_size=8
)


def flat(samples: list[list[tuple[float, bool]]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        torch.tensor([value for sample in samples for value, _ in sample], dtype=F64),
        torch.tensor([inside for sample in samples for _, inside in sample]),
        torch.tensor([index for index, sample in enumerate(samples) for _ in sample]),
    )


def test_a_long_sample_in_float32_keeps_its_digits() -> None:
    losses = torch.full((100_000,), 0.1)
    numerator, _ = aggregate(
        losses, torch.ones_like(losses, dtype=torch.bool), torch.zeros(100_000), mode="sample_mean"
    )
    assert numerator.item() == pytest.approx(torch.tensor(0.1).item(), rel=1e-7)


@settings(max_examples=80, deadline=None)
@given(samples_of_tokens, st.sampled_from(MODES), st.randoms(use_true_random=False))
def test_any_split_and_order_of_samples_adds_up_to_the_whole(samples, mode, random) -> None:
    whole = aggregate(*flat(samples), mode=mode)
    shuffled = list(samples)
    random.shuffle(shuffled)
    micro_batches: list[list[list[tuple[float, bool]]]] = [[]]
    for sample in shuffled:
        micro_batches[-1].append(sample)
        if random.random() < 0.4:
            micro_batches.append([])
    parts = [aggregate(*flat(part), mode=mode) for part in micro_batches if part]
    numerator = sum(part[0].item() for part in parts)
    denominator = sum(part[1].item() for part in parts)
    assert numerator == pytest.approx(whole[0].item(), abs=1e-10)
    assert denominator == whole[1].item()
