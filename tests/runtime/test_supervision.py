"""What follows a failure, by its number in a row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime import supervision
from headrace.runtime.supervision import Measure, Policy, Rung, after_failure, pause_after

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


POLICIES = [getattr(supervision, name) for name in ("ENGINE", "SWAP", "RETURN", "ROLLOUT_WORKER", "TRAINER")]


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


def test_what_has_not_failed_is_refused() -> None:
    with pytest.raises(ValueError, match="0 failures: nothing has failed"):
        after_failure(LADDER, 0)
