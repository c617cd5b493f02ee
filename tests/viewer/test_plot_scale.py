"""Axes, worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.viewer.plot.scale import Scale, along, nice, scale_of

finite = st.floats(-1e150, 1e150)


@pytest.mark.parametrize(
    ("step", "rounded"),
    [(1, 1), (1.2, 2), (2.1, 2.5), (2.6, 5), (5.1, 10), (0.03, 0.05), (0.1, 0.1), (700, 1000), (3e-7, 5e-7)],
)
def test_steps_are_one_two_two_and_a_half_or_five_times_a_power_of_ten(step: float, rounded: float) -> None:
    assert nice(step) == pytest.approx(rounded)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.27, 0.98], ["0.2", "0.4", "0.6", "0.8", "1.0"]),
        ([0.0, 3.1], ["0", "1", "2", "3", "4"]),
        ([-0.051, 0.002], ["-0.06", "-0.04", "-0.02", "0", "0.02"]),
        ([0, 9.9], ["0", "2.5", "5.0", "7.5", "10.0"]),
        ([11_000, 30_000], ["10k", "15k", "20k", "25k", "30k"]),
        ([1.1e6, 2.9e6], ["1.0M", "1.5M", "2.0M", "2.5M", "3.0M"]),
        ([1e-5, 6e-5], ["0", "2e-5", "4e-5", "6e-5"]),
        ([2e13, 6e13], ["2e13", "3e13", "4e13", "5e13", "6e13"]),
        ([0, 9e-4], ["0", "2.5e-4", "5e-4", "7.5e-4", "1e-3"]),
    ],
)
def test_round_ends_around_the_values(values: list[float], labels: list[str]) -> None:
    scale = scale_of(values)
    assert [scale.label(tick) for tick in scale.ticks] == labels


def test_an_axis_from_zero() -> None:
    assert scale_of([4.4, 13.8], from_zero=True).ticks == (0, 5, 10, 15)
    assert scale_of([4.4, 13.8]).ticks == (2.5, 5, 7.5, 10, 12.5, 15)


def test_values_without_a_span() -> None:
    assert scale_of([0.0, 0.0]) == Scale(0.0, 1.0, 0.25)
    one = scale_of([5.0])  # 4.5 to 5.5, in steps of 0.25
    assert (one.low, one.high, one.step) == (4.5, 5.5, 0.25)


def test_along_x_the_ticks_are_within_and_batches_whole() -> None:
    assert along(80, whole=True).ticks == (0, 20, 40, 60, 80)
    assert along(7, whole=True).ticks == (0, 2, 4, 6)
    assert along(1, whole=True).ticks == (0, 1)
    assert along(12, whole=True).ticks == (0, 3, 6, 9, 12)  # 2.5 is no number of batches
    assert along(3.1, whole=False).ticks == (0, 1, 2, 3)


def test_places_are_shares_of_the_axis() -> None:
    scale = Scale(2.0, 6.0, 1.0)
    assert [scale.place(value) for value in (2, 3, 6)] == [0, 0.25, 1]


@given(st.lists(finite, min_size=1, max_size=20), st.booleans())
def test_whatever_the_values_they_are_on_the_axis_and_labels_are_few_and_distinct(
    values: list[float], from_zero: bool
) -> None:
    scale = scale_of(values, from_zero=from_zero)
    assert scale.low < scale.high
    assert all(0 <= scale.place(value) <= 1 for value in values)
    assert 2 <= len(scale.ticks) <= 8
    assert all(0 <= scale.place(tick) <= 1 for tick in scale.ticks)
    labels = [scale.label(tick) for tick in scale.ticks]
    assert len(set(labels)) == len(labels)
    assert all(len(label) <= 12 for label in labels)
    if from_zero:
        assert scale.low <= 0 <= scale.high


@given(st.floats(1e-100, 1e100), st.booleans())
def test_whatever_the_last_x_ticks_are_few(last: float, whole: bool) -> None:
    scale = along(max(last, 1.0) if whole else last, whole=whole)
    assert 2 <= len(scale.ticks) <= 7
