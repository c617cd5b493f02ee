import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.advantages import whiten

F64 = torch.float64


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def test_by_hand() -> None:
    # 1, 2, 6: mean 3, centred -2, -1, 3, unbiased variance 14 / 2 = 7.
    x, mask = tensor(1, math.nan, 2, 6, math.inf), torch.tensor([True, False, True, True, False])
    std = math.sqrt(7 + 1e-8)
    expected = tensor(-2 / std, 0, -1 / std, 3 / std, 0)
    torch.testing.assert_close(whiten(x, mask), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shift", [1e4, -3e6])
def test_a_large_mean_does_not_cancel(shift: float) -> None:
    x = torch.tensor([shift + step for step in (0.0, 1.0, 2.0, 3.0)], dtype=torch.float32)
    plain = whiten(tensor(0, 1, 2, 3), torch.ones(4, dtype=torch.bool))
    torch.testing.assert_close(whiten(x, torch.ones(4, dtype=torch.bool)).double(), plain, rtol=1e-6, atol=1e-6)


def test_an_outlier_does_not_shift_the_rest() -> None:
    x = torch.zeros(199_999)
    x[7] = -1e6
    mask = torch.ones_like(x, dtype=torch.bool)
    torch.testing.assert_close(whiten(x, mask).double(), whiten(x.double(), mask), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("value", [0.1, 1e6 + 0.3, -7.7])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_equal_values_one_value_and_none_give_zeros(value: float, dtype: torch.dtype) -> None:
    x = torch.full((7,), value, dtype=dtype)
    one = torch.arange(7) == 3
    for mask in (torch.ones(7, dtype=torch.bool), one, torch.zeros_like(one)):
        whitened = whiten(x, mask)
        assert whitened.tolist() == [0.0] * 7
        assert whitened.dtype == dtype


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-10, 10), st.booleans()), min_size=1, max_size=30), st.randoms(use_true_random=False)
)
def test_mean_zero_variance_one_in_any_order(rows, random) -> None:
    x, mask = tensor(*(row[0] for row in rows)), torch.tensor([row[1] for row in rows])
    before = x.clone()
    whitened = whiten(x, mask)
    assert torch.equal(x, before)
    order = list(range(len(rows)))
    random.shuffle(order)
    torch.testing.assert_close(whiten(x[order], mask[order]), whitened[order], rtol=1e-9, atol=1e-9)
    inside = [row[0] for row in rows if row[1]]
    if len(inside) < 2:
        return
    mean = math.fsum(inside) / len(inside)
    variance = math.fsum((value - mean) ** 2 for value in inside) / (len(inside) - 1)
    for value, actual in zip(inside, whitened[mask].tolist(), strict=True):
        assert actual == pytest.approx((value - mean) / math.sqrt(variance + 1e-8), rel=1e-8, abs=1e-8)
