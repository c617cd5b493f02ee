"""Names of versions, and lines of them that go back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.weights.version import INITIAL, Lineage, Version


def test_an_engine_goes_on_with_what_ran_when_the_run_went_back() -> None:
    """It knows no line: whoever asked has been given a deadline that the later branch meets."""
    assert Version(1, 5).serves(Version(0, 7))
    assert Version(0, 7).serves(Version(0, 7))
    assert not Version(0, 6).serves(Version(0, 7))
    assert not Version(0, 8).serves(Version(1, 5))


def test_after_a_return_the_line_has_another_floor_for_what_began_later() -> None:
    line = Lineage(0, {})
    assert line.floor(Version(0, 7)) == 7
    line.go_back(Version(1, 5), {1: 2**60, 0: 5})
    assert (line.floor(Version(0, 7)), line.floor(Version(0, 3)), line.floor(Version(1, 6))) == (5, 3, 6)
    assert [line.holds(Version(0, number)) for number in (5, 6)] == [True, False]
    line.go_back(Version(2, 6), {2: 2**60, 1: 6, 0: 5})
    assert (line.floor(Version(0, 7)), line.floor(Version(1, 6)), line.floor(Version(1, 8))) == (5, 6, 6)


def test_what_was_served_before_a_return_is_known_as_such() -> None:
    line = Lineage(1, {1: 2**60, 0: 4})
    assert not line.held(Version(0, 6)), "of a branch that another process left"
    line.go_back(Version(2, 5), {2: 2**60, 1: 5, 0: 4})
    assert line.held(Version(1, 9))
    assert not line.holds(Version(1, 9))
    assert not line.held(Version(0, 6))
    assert line.branch == 2


@given(st.lists(st.integers(0, 5), max_size=6), st.integers(0, 9))
def test_a_floor_never_rises_and_every_version_of_the_line_from_there_on_meets_it(
    backwards: list[int], start: int
) -> None:
    line, number, begun = Lineage(0, {}), start, Version(0, start)
    floors = [line.floor(begun)]
    for branch, back in enumerate(backwards, 1):
        number = max(number - back, 0)
        line.go_back(Version(branch, number), {})
        floors.append(line.floor(begun))
        assert floors[-1] <= number
        number += 2
    assert floors == sorted(floors, reverse=True)
    assert line.floor(INITIAL) == 0
