"""When the trainer's devices are lent: numbers by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.roles.lending_rule import LendingRule, Lent

SECONDS = st.floats(0.0, 1e4)
LENDINGS = st.tuples(SECONDS, st.none() | SECONDS, st.none() | st.floats(0.0, 1.0), SECONDS)


def test_it_is_tried_while_nothing_is_known() -> None:
    assert LendingRule(1, 1).lends()


def test_it_begins_where_it_gives_twice_what_it_takes_and_goes_on_where_it_gives_more() -> None:
    """One engine and one that is lent. A lending of 8 s, 2 s of them to begin, half of the tokens in the other 6: the
    other would have made these in 6 s more, so that the wait without was 14 s, and 12 of them are halved."""
    rule = LendingRule(1, 1)
    rule.lent(Lent(seconds=8.0, begin_s=2.0, share=0.5, back_s=1.0, again_s=0.5))
    assert (rule.gives_s, rule.takes_s) == (6.0, 1.5)
    assert rule.lends()
    rule.waited(0.0)  # (14 + 0) / 2 = 7: gives 2.5, and takes 1.5
    assert (rule.gives_s, rule.takes_s) == (2.5, 1.5)
    assert rule.lends()
    rule.waited(2.0)  # (7 + 2) / 2 = 4.5: gives 1.25
    assert rule.gives_s == 1.25
    assert not rule.lends()
    rule.waited(8.5)  # (4.5 + 8.5) / 2 = 6.5: gives 2.25, more than it takes and less than twice that
    assert rule.gives_s == 2.25
    assert not rule.lends()
    rule.waited(11.5)  # 9: gives 3.5
    assert rule.gives_s == 3.5
    assert rule.lends()


def test_a_share_that_was_small_is_forgotten_in_time() -> None:
    """Three engines and one: a fourth is expected. One that made nothing brings it to an eighth; each batch without
    lending takes an eighth of what is missing back."""
    rule = LendingRule(3, 1)
    rule.lent(Lent(seconds=10.0, begin_s=None, share=0.0, back_s=2.0))
    assert rule.gives_s == 10.0 * 0.125
    assert not rule.lends()
    rule.waited(10.0)
    assert rule.gives_s == 10.0 * (0.125 + 0.125 / 8)
    for _ in range(40):
        rule.waited(10.0)
    assert rule.gives_s == pytest.approx(2.5, rel=0.01)
    assert not rule.lends()
    for _ in range(8):
        rule.waited(40.0)
    assert rule.lends()


def test_one_that_did_not_serve_tells_nothing_of_its_share() -> None:
    rule = LendingRule(1, 1)
    rule.lent(Lent(seconds=0.5, begin_s=None, share=None, back_s=1.0))
    assert rule.gives_s == 0.25
    assert not rule.lends()


def test_it_is_never_taken_for_more_than_its_part() -> None:
    """Of two engines it made all, since the other had nothing to do: half of it counts."""
    rule = LendingRule(1, 1)
    rule.lent(Lent(seconds=10.0, begin_s=None, share=1.0, back_s=1.0))
    assert rule.gives_s == 10.0


def test_it_ends_where_others_make_what_is_missing_while_the_devices_are_on_their_way_back() -> None:
    """One engine and one that is lent. The way back takes 2 s, and the other half a second to compute again what was in
    flight: in the 1.5 s that are left it makes what both make in 0.75 s. The last group took half a second, the last
    two one."""
    rule = LendingRule(1, 1)
    assert not rule.ends(1)
    left = {1: 0.5, 2: 1.0, 3: 3.0}
    rule.lent(Lent(seconds=10.0, begin_s=None, share=0.5, back_s=2.0, again_s=0.5, left_s=left))
    assert [missing for missing in (1, 2, 3, 4) if rule.ends(missing)] == [1]
    assert rule.takes_s == 2.5
    # Begun with one group missing: alone, the other had it after 0.5 s for what was in flight, and 1 s for what both
    # make in half of that. So the last group is expected to take as long as before. Of the way back 0.5 s are left.
    left = {1: 1.5, 2: 2.0}
    rule.lent(Lent(seconds=10.0, begin_s=None, share=0.5, back_s=2.0, again_s=0.5, early_s=1.5, left_s=left))
    assert [missing for missing in (1, 2, 3, 4) if rule.ends(missing)] == [1]
    assert rule.takes_s == (2.5 + 1.0) / 2
    rule.lent(Lent(seconds=10.0, begin_s=None, share=0.5, back_s=2.0, again_s=0.5, left_s={1: 1.1}))
    assert not rule.ends(1), "(0.5 + 1.1) / 2 = 0.8"


def test_it_does_not_end_early_where_what_was_in_flight_takes_longer_than_the_way_back() -> None:
    rule = LendingRule(1, 1)
    rule.lent(Lent(seconds=10.0, begin_s=None, share=0.5, back_s=1.0, again_s=1.5, left_s={1: 0.0}))
    assert not rule.ends(1)


@given(st.lists(LENDINGS, max_size=8), SECONDS)
def test_where_waits_are_short_nothing_is_lent(
    before: list[tuple[float, float | None, float | None, float]], back: float
) -> None:
    """Whatever was before: 60 batches halve it to nothing."""
    rule = LendingRule(1, 1)
    for seconds, begin, share, took in before:
        rule.lent(Lent(seconds, begin, share, took))
        rule.waited(seconds)
    for _ in range(60):
        rule.lent(Lent(0.0, None, None, back + 0.01))
    assert not rule.lends()
