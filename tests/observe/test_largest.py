"""A number that came to NaN is seen among others, wherever it stands."""

from __future__ import annotations

import math

import pytest

from headrace.observe.largest import largest


@pytest.mark.parametrize("values", [[0.5, math.nan], [math.nan, 0.5], [0.5, math.nan, math.inf]])
def test_a_nan_is_the_largest(values: list[float]) -> None:
    assert math.isnan(largest(values))


def test_without_one_it_is_the_largest() -> None:
    assert largest([0.5, math.inf, -1.0]) == math.inf
    assert largest([-1.0, -2.0]) == -1.0
    assert largest([], 0.0) == 0.0
    with pytest.raises(ValueError, match="empty"):
        largest([])
