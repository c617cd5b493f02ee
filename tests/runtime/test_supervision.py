"""What follows a failure, by its number in a row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime import supervision
from headrace.runtime.supervision import (
    LossWindow,
    Measure,
    Often,
    Policy,
    Restarts,
    Rung,
    after_failure,
    pause_after,
)

LADDER: Policy = (Rung(Measure.AGAIN, 2), Rung(Measure.RESTART, 1), Rung(Measure.FROM_COMMIT, 2))


def test_each_rung_answers_its_share_and_then_the_run_stops() -> None:
    measures = [after_failure(LADDER, failures).measure.value for failures in range(1, 8)]
    assert measures == ["again", "again", "restart", "from_commit", "from_commit", "stop", "stop"]


def test_pauses_grow_on_a_rung_and_end_growing() -> None:
    pauses = [pause_after(failures) for failures in range(1, 2_000)]
    assert pauses[:3] == [0.25, 0.5, 1.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 30.0
    assert [after_failure(LADDER, failures).pause_s for failures in range(1, 6)] == [0.25, 0.5, 0.25, 0.25, 0.5]


POLICIES = [
    getattr(supervision, name)
    for name in ("ENGINE", "SWAP", "RETURN", "REQUEST", "ROLLOUT_WORKER", "SCORER", "TRAINER", "BATCH")
]


@given(st.sampled_from(POLICIES), st.integers(1, 10**6))
def test_nothing_is_retried_without_a_pause_and_measures_only_grow_stronger(policy: Policy, failures: int) -> None:
    strength = list(Measure)
    then, next_one = after_failure(policy, failures), after_failure(policy, failures + 1)
    assert then.measure is Measure.STOP or then.pause_s > 0
    assert strength.index(next_one.measure) >= strength.index(then.measure)


def test_the_policies_by_hand() -> None:
    said = {failures: after_failure(supervision.ENGINE, failures).measure for failures in (1, 4, 5)}
    assert said == {1: Measure.RESTART, 4: Measure.RESTART, 5: Measure.STOP}
    assert after_failure(supervision.SWAP, 3).measure is Measure.RESTART
    assert after_failure(supervision.TRAINER, 4).measure is Measure.STOP


def measures(restarts: Restarts, failures: list[tuple[float, int, int]], role: str = "trainer") -> str:
    """Of failures at these seconds, after so many batches, with such a commit: the initials of what is done."""
    found = (restarts.after(role, at, batches=batches, committed=commit) for at, batches, commit in failures)
    return "".join({Measure.RESTART: "r", Measure.FROM_COMMIT: "c", Measure.STOP: "s"}[each] for each in found)


def test_the_third_restart_in_ten_minutes_has_all_go_back_and_the_third_after_that_stops() -> None:
    restarts = Restarts(3, 600.0)
    assert measures(restarts, [(0, 0, 0), (100, 5, 4), (200, 9, 8)]) == "rrc"
    assert measures(restarts, [(300, 12, 12), (400, 15, 14), (799, 20, 20)]) == "rrs"


def test_restarts_that_are_far_apart_are_borne_for_ever() -> None:
    """Two within any ten minutes, with batches between."""
    assert measures(Restarts(3, 600.0), [(300.0 * number, number, number) for number in range(50)]) == "r" * 50
    assert measures(Restarts(3, 600.0), [(0, 0, 0), (1, 1, 0), (600, 2, 0), (601, 3, 0), (602, 4, 0)]) == "rrrrc"


def test_in_a_row_without_a_batch_between_counts_however_long_it_takes() -> None:
    restarts = Restarts(3, 600.0)
    assert measures(restarts, [(0, 7, 6), (1e4, 7, 6), (2e4, 7, 6)]) == "rrc"
    again = [(3e4, 7, 6), (4e4, 7, 6), (5e4, 7, 6)]
    assert measures(restarts, again) == "rrs"  # nothing was committed since


def test_after_a_commit_and_a_quiet_time_all_may_go_back_once_more() -> None:
    restarts = Restarts(2, 600.0)
    assert measures(restarts, [(0, 1, 0), (10, 1, 0), (5000, 9, 8), (5010, 9, 8)]) == "rcrc"


def test_roles_are_counted_apart_and_all_anew_once_all_went_back() -> None:
    restarts = Restarts(2, 600.0)
    assert measures(restarts, [(0, 0, 0)]) + measures(restarts, [(1, 0, 0)], "critic") == "rr"
    assert measures(restarts, [(2, 0, 0)]) + measures(restarts, [(3, 0, 0)], "critic") == "cr"
    assert measures(Restarts(1, 600.0), [(0, 0, 0), (9, 0, 0)]) == "cs"


@given(st.lists(st.tuples(st.floats(0, 400), st.integers(0, 1)), max_size=40), st.integers(1, 5))
def test_no_window_has_more_restarts_in_place_than_it_may(gaps: list[tuple[float, int]], most: int) -> None:
    restarts, now, batches, in_place = Restarts(most, 600.0), 0.0, 0, []
    for gap, trained in gaps:
        now, batches = now + gap, batches + trained
        measure = restarts.after("trainer", now, batches=batches, committed=batches)
        in_place = [*in_place, now] if measure is Measure.RESTART else []
        assert sum(now - at < 600 for at in in_place) < most
        if measure is Measure.STOP:
            return


def test_what_has_not_failed_is_refused() -> None:
    with pytest.raises(ValueError, match="0 failures: nothing has failed"):
        after_failure(LADDER, 0)


def test_so_many_losses_within_a_time_are_too_many_whatever_came_of_the_worker_between() -> None:
    losses = LossWindow(Often(3, 60.0))
    often = "3 times within 60 s (runtime.restarts.workers)"
    assert [losses.lost(at) for at in (0.0, 30.0, 60.0, 89.0, 149.0)] == [None, None, None, often, None]
    unbounded = LossWindow(None)
    assert not any(unbounded.lost(0.0) for _ in range(100))


def test_losses_that_are_explained_later_do_not_count() -> None:
    losses, known = LossWindow(Often(3, 60.0)), set[str]()
    assert [losses.lost(at, what, known.__contains__) for at, what in ((0.0, "a"), (1.0, "b"))] == [None, None]
    known.add("a")
    assert losses.lost(2.0, "a", known.__contains__) is None
    assert losses.lost(3.0, "c", known.__contains__) is None
    assert losses.lost(4.0, "d", known.__contains__) is not None
