"""Where time goes: seconds that are shared out as they pass, and shares that add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.observe import spent
from headrace.observe.glyphs import percents
from headrace.observe.record import Totals
from headrace.observe.shares import Share, at_most, of_side, shares
from headrace.observe.spent import Activity, Spent


class Hand:
    """A clock set by hand, and what time is spent on."""

    def __init__(self) -> None:
        self.time = 100.0
        self.what = "a"


def test_seconds_count_as_what_they_were_when_they_began() -> None:
    hand = Hand()
    meter = Spent(lambda: hand.time, lambda: hand.what)
    hand.time, hand.what = 102.0, "b"
    meter.look()
    hand.time, hand.what = 105.0, "c"
    assert meter.totals() == {"a": 2.0, "b": 3.0}
    hand.time = 106.5
    assert meter.totals() == {"a": 2.0, "b": 3.0, "c": 1.5}


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from("abc"), st.booleans()), max_size=30))
def test_seconds_add_up_whatever_is_looked_at(moments: list[tuple[int, str, bool]]) -> None:
    hand = Hand()
    meter = Spent(lambda: hand.time, lambda: hand.what)
    for seconds, what, looks in moments:
        hand.time, hand.what = hand.time + seconds, what
        if looks:
            meter.look()
    assert sum(meter.totals().values()) == hand.time - 100.0


def test_an_activity_within_another_is_told_and_ends() -> None:
    activity, seen = Activity(), []
    activity.listen(lambda: seen.append((activity.trainer, activity.evaluating, activity.computing["x"])))
    with activity.training(spent.TRAINS), activity.training(spent.ROWS):
        pass
    with pytest.raises(ZeroDivisionError), activity.evaluation(), activity.computes("x"):
        raise ZeroDivisionError
    assert [trainer for trainer, *_ in seen[:4]] == [spent.TRAINS, spent.ROWS, spent.TRAINS, spent.OTHER]
    assert [rest for _, *rest in seen[4:]] == [[True, 0], [True, 1], [True, 0], [False, 0]]


TOTALS = Totals(
    elapsed_s=100.0,
    trainer_s={spent.OTHER: 4.0, spent.GENERATION: 10.0, spent.TRAINS: 60.0, spent.COLUMNS: 25.7, spent.CRITIC: 0.3},
    engines_s={spent.COMPUTES: 50.0, spent.NO_PROMPTS: 50.0},
)


def told(found: list[Share]) -> list[tuple[str, str, float]]:
    return [(share.side, share.what, pytest.approx(share.share)) for share in found]


def test_work_comes_first_then_waits_then_the_rest_which_has_what_is_small() -> None:
    found = list(shares(TOTALS))
    assert told(found) == [
        ("trainer", "trains", 0.6),
        ("trainer", "scores and advantages", 0.257),
        ("trainer", "generation", 0.1),
        ("trainer", "other", 0.043),
        ("engines", "computes", 0.5),
        ("engines", "the end, as every prompt is started", 0.5),
    ]
    assert [share.is_wait for share in found] == [False, True, True, False, False, True]
    assert found[3].seconds == pytest.approx(4.3)
    assert shares(Totals(elapsed_s=5.0)) == ()


def test_where_lines_are_few_the_smallest_are_gathered() -> None:
    found = list(shares(TOTALS))
    assert at_most(found, 6) == found
    assert told(at_most(found, 5)) == [
        ("trainer", "trains", 0.6),
        ("trainer", "scores and advantages", 0.257),
        ("trainer", "other", 0.143),
        ("engines", "computes", 0.5),
        ("engines", "the end, as every prompt is started", 0.5),
    ]
    assert told(at_most(found, 4))[1:] == [
        ("trainer", "other", 0.4),
        ("engines", "computes", 0.5),
        ("engines", "the end, as every prompt is started", 0.5),
    ]
    assert told(at_most(found, 2)) == [("trainer", "trains", 0.6), ("engines", "computes", 0.5)]


@given(st.dictionaries(st.text(max_size=3), st.floats(0.001, 1e6), min_size=1, max_size=9), st.integers(2, 12))
def test_the_shares_of_a_side_add_up_to_all(seconds: dict[str, float], lines: int) -> None:
    found = shares(Totals(trainer_s=seconds))
    assert sum(share.share for share in found) == pytest.approx(1.0)
    assert sum(share.share for share in at_most(found, lines)) == pytest.approx(1.0)
    assert len(at_most(found, lines)) <= lines
    whole = [int(text.rstrip("%")) for text in percents([share.share for share in of_side(found, "trainer")])]
    assert sum(whole) == 100


def test_percents_add_up() -> None:
    assert percents([1 / 3, 1 / 3, 1 / 3]) == ["34%", "33%", "33%"]
    assert percents([0.995, 0.005]) == ["99%", "1%"] or percents([0.995, 0.005]) == ["100%", "0%"]
    assert percents([0.5, 0.5]) == ["50%", "50%"]
    assert percents([]) == []
