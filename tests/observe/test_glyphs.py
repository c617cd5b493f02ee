import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.observe.glyphs import amount, bar, curve, decimal, duration


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "-"), (0, "0"), (842, "842"), (999, "999"), (999.6, "1.0k"), (5123, "5.1k"), (99_949, "99.9k"),
        (123_456, "123k"), (999_950, "1.0M"), (3.7e7, "37.0M"), (2.5e9, "2.5G"),
    ],
)  # fmt: skip
def test_amount(number: float | None, text: str) -> None:
    assert amount(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0:00"), (42.4, "0:42"), (59.7, "1:00"), (3787, "1:03:07"), (187_200, "2d 04:00")],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(None, "-"), (0.0, "0.000"), (0.8124, "0.812"), (-2.5, "-2.500"), (1.2e-5, "1.2e-05")]
)
def test_decimal(number: float | None, text: str) -> None:
    assert decimal(number) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, ""), (1, "████"), (0.5, "██"), (0.53125, "██▏"), (1e-9, "▏"), (7.0, "████"), (-1, "")],
)
def test_bar(share: float, text: str) -> None:
    assert bar(share, 4) == text


def test_curve_by_hand() -> None:
    # Levels 1 (lowest), 16 (highest) and half way, 1 + round(7.5) = 9, of 2 lines of 8.
    assert curve([0.0, 1.0, 0.5], 3, 2, span=3) == [" █▁", "▁██"]


def test_a_curve_fills_its_part_of_the_span() -> None:
    assert curve([0.0, 1.0], 8, 1, span=4) == ["▁▁██    "]
    assert curve([0.0, 1.0, 5.0, 7.0], 2, 1, span=4) == ["▁█"]


def test_a_flat_curve_stands_half_way() -> None:
    assert curve([3.0, 3.0], 2, 2, span=2) == ["  ", "██"]


def test_values_that_are_not_finite_are_left_out() -> None:
    assert curve([0.0, math.nan, 1.0, math.inf], 4, 1, span=4) == ["▁ █ "]
    assert curve([math.nan], 2, 2, span=1) == ["  ", "  "]


@given(st.lists(st.floats(), max_size=300), st.integers(1, 40), st.integers(1, 6), st.integers(0, 400))
def test_a_curve_has_its_size(values: list[float], width: int, height: int, span: int) -> None:
    lines = curve(values, width, height, span)
    assert [len(line) for line in lines] == [width] * height
