"""Lending in virtual time: what it gives, what it leaves as it is, and what it bears."""

from __future__ import annotations

from typing import Any

import pytest
from simulated_jobs import check, job, trained_groups

from headrace.controller.simulation.hazards import TrainingFaults
from headrace.controller.simulation.outside import Costs
from headrace.controller.simulation.simulated_run import FOLDER, Faults, Outcome, simulate
from headrace.engines.simulated_answers import Answers
from headrace.engines.simulated_costs import EngineCosts, EngineFaults
from headrace.roles.lending_rule import LendingRule
from headrace.store import RunReader

LENT = {"engine__lent": 1}
COSTS = Costs(engine=EngineCosts(sequence_s=2e-3), answers=Answers(mean_tokens=200, spread=0.5))
"""An engine with half of the sequences is faster."""


def ended(faults: Faults = Faults(), costs: Costs = COSTS, **changes: Any) -> Outcome:  # noqa: B008 (frozen)
    config = job(**changes)
    outcome = simulate(config, 1, faults, costs=costs, limit_s=1_000.0)
    check(outcome, config)
    assert not outcome.broken
    return outcome


def events(outcome: Outcome, kind: str) -> list[dict[str, Any]]:
    with RunReader(FOLDER, outcome.files) as reader:
        return [event.data for event in reader.events.read() if event.kind == kind]


def test_sync_is_faster_and_trains_the_same_groups_on_its_own_versions() -> None:
    usual, lent = ended(async__mode="sync"), ended(async__mode="sync", **LENT)
    assert lent.seconds < 0.9 * usual.seconds
    assert lent.state.tally == usual.state.tally
    keys = [[(batch, group.key) for batch, group in trained_groups(each)] for each in (usual, lent)]
    assert keys[0] == keys[1]
    told = events(lent, "lent")
    assert [event["batch"] for event in told] == [*range(8)]
    assert all(event["tokens"] > 0 for event in told)
    seconds = sum(event["until"] - event["from"] for event in told)
    # Counted is also the time in which an engine goes to sleep, and not that in which the trainer does.
    assert lent.record.totals.lent_s == pytest.approx(seconds, abs=1.0)
    assert usual.record.totals.lent_s == 0.0


@pytest.mark.parametrize("mode", ["one_step_off", "async"])
def test_what_is_in_flight_when_the_batch_is_there_goes_on_elsewhere(mode: str) -> None:
    usual, lent = ended(async__mode=mode), ended(async__mode=mode, **LENT)
    assert lent.seconds < 0.95 * usual.seconds
    assert sum(event["sent_away_tokens"] for event in events(lent, "lent")) > 0


def test_nothing_is_lent_where_that_takes_more_than_it_gives() -> None:
    """It takes 10 s to have memory again, and no wait is so long; the first lending shows that."""
    slow = Costs(engine=EngineCosts(sleep_s=10.0, sequence_s=2e-3), answers=Answers(mean_tokens=40, spread=0.5))
    outcome = ended(costs=slow, async__mode="sync", **LENT)
    assert [event["batch"] for event in events(outcome, "lent")] == [0]


def test_where_the_way_back_takes_long_it_begins_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 s; the same groups are trained."""
    slow = Costs(engine=EngineCosts(sequence_s=2e-3, sleep_s=4.0), answers=Answers(mean_tokens=200, spread=1.0))
    early = ended(costs=slow, async__mode="sync", **LENT)
    monkeypatch.setattr(LendingRule, "ends", lambda rule, missing: False)
    late = ended(costs=slow, async__mode="sync", **LENT)
    assert early.seconds < 0.98 * late.seconds
    assert sum(event["early_s"] > 0 for event in events(early, "lent")) >= 3
    assert {event["early_s"] for event in events(late, "lent")} == {0.0}
    keys = [[(batch, group.key) for batch, group in trained_groups(each)] for each in (early, late)]
    assert keys[0] == keys[1]


def test_a_lent_engine_that_dies_comes_back_and_a_trainer_that_dies_as_well() -> None:
    faults = Faults(
        engines={1: EngineFaults(dies_at=14.0)},
        training=TrainingFaults(deaths=(("actor", 3),), deaths_in_sleep=(("actor", 5),)),
        restart_s=5.0,
    )
    outcome = ended(faults, async__mode="sync", **LENT)
    assert {event["engine"] for event in events(outcome, "engine_died")} == {1}
    assert {event["engine"] for event in events(outcome, "engine_back")} == {1}
    assert len(events(outcome, "went_back")) == 2
    assert events(outcome, "lent")[-1]["tokens"] > 0


def test_a_run_whose_own_engine_is_gone_goes_on_with_what_is_lent() -> None:
    """Until the own one is back: nothing is reckoned there."""
    faults = Faults(engines={0: EngineFaults(dies_at=3.0)})
    assert events(ended(faults, async__mode="sync", **LENT), "engine_back")
