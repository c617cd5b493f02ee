import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.corrections import second_moment_mask

F64 = torch.float64


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


# Squares 1, 0.04, 4, 0.16 (and one masked out): the mean of all 1.3, without the 4 it is 0.4, of the two smallest 0.1.
LOG_RATIOS = tensor(1, -0.2, math.nan, -2, 0.4)
MASK = torch.tensor([True, True, False, True, True])


@pytest.mark.parametrize(
    ("threshold", "kept"),
    [
        (1.31, [True, True, False, True, True]),
        (1.29, [True, True, False, False, True]),
        (0.41, [True, True, False, False, True]),
        (0.39, [False, True, False, False, True]),
        (0.05, [False, True, False, False, False]),
        (0.03, [False, False, False, False, False]),
    ],
)
def test_the_largest_go_until_the_mean_fits(threshold: float, kept: list[bool]) -> None:
    assert second_moment_mask(LOG_RATIOS, torch.zeros(5, dtype=F64), MASK, threshold=threshold).tolist() == kept


def test_with_advantages_only_tokens_driven_away_are_looked_at() -> None:
    # A > 0 with ratio above 1 (the first), A < 0 below 1 (the fourth): squares 1 and 4. The others stay.
    advantages = tensor(1, 1, 1, -1, -1)
    zero = torch.zeros(5, dtype=F64)
    for threshold, kept in ((2.51, [1, 1, 0, 1, 1]), (2.49, [1, 1, 0, 0, 1]), (0.5, [0, 1, 0, 0, 1])):
        actual = second_moment_mask(LOG_RATIOS, zero, MASK, threshold=threshold, advantages=advantages)
        assert actual.tolist() == [bool(x) for x in kept]


def test_equal_squares_stay_or_go_together() -> None:
    log_ratios = tensor(1, -1, 0.1)
    mask = torch.ones(3, dtype=torch.bool)
    # Without one of the two the mean would be 0.505.
    assert second_moment_mask(log_ratios, tensor(0, 0, 0), mask, threshold=0.51).tolist() == [False, False, True]


def test_no_tokens_and_a_bad_threshold() -> None:
    none = torch.zeros(5, dtype=torch.bool)
    assert not second_moment_mask(LOG_RATIOS, LOG_RATIOS, none).any()
    with pytest.raises(ValueError, match=r"threshold is -0.1"):
        second_moment_mask(LOG_RATIOS, LOG_RATIOS, MASK, threshold=-0.1)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-2, 2), st.booleans()), min_size=1, max_size=20),
    st.floats(0, 2),
    st.randoms(use_true_random=False),
)
def test_agrees_with_taking_the_largest_out_one_after_another(rows, threshold, random) -> None:
    log_ratios, mask = tensor(*(row[0] for row in rows)), torch.tensor([row[1] for row in rows])
    zero = torch.zeros_like(log_ratios)
    kept = second_moment_mask(log_ratios, zero, mask, threshold=threshold)
    left = sorted(row[0] ** 2 for row in rows if row[1])
    while left and math.fsum(left) / len(left) > threshold + 1e-12:
        largest = left[-1]
        left = [square for square in left if square < largest]
    borderline = left and abs(math.fsum(left) / len(left) - threshold) < 1e-9
    if not borderline:
        assert sorted(log_ratios[kept].square().tolist()) == pytest.approx(left)
    order = list(range(len(rows)))
    random.shuffle(order)
    assert torch.equal(second_moment_mask(log_ratios[order], zero, mask[order], threshold=threshold), kept[order])
