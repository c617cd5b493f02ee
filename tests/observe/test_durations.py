"""Durations are counted in steps of a tenth, so that they add up over processes; quantiles are of the nearest rank."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.observe.durations import Durations, quantile


def counted(*seconds: float) -> dict[str, int]:
    durations = Durations()
    for each in seconds:
        durations.add(each)
    return dict(durations.counts)


def test_steps_by_hand() -> None:
    """Ten to the n-th twenty-fourth, on two digits: 3000 is nearest to 10^(83/24) = 2873."""
    assert counted(1.0, 1.04, 1.06, 0.012, 3000.0) == {"1": 2, "1.1": 1, "0.012": 1, "2.9e+03": 1}
    assert counted(0.0, -1.0) == {"1e-06": 2}


def test_quantiles_by_hand() -> None:
    counts = {"10": 1, "0.012": 98, "1": 1}
    assert quantile(counts, 0.5) == 0.012
    assert quantile(counts, 0.98) == 0.012
    assert quantile(counts, 0.99) == 1.0
    assert quantile(counts, 1.0) == 10.0
    assert quantile({}, 0.5) is None
    assert quantile({"1": 0}, 0.5) is None


@given(st.lists(st.floats(1e-5, 1e5), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_is_within_a_tenth_of_the_exact_one(seconds: list[float], share: float) -> None:
    exact = sorted(seconds)[math.ceil(share * len(seconds) - 1e-9) - 1]
    told = quantile(counted(*seconds), share)
    assert told == pytest.approx(exact, rel=0.1)
