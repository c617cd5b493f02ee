"""Whole runs of the real controller in virtual time."""

from __future__ import annotations

from simulated_jobs import job

from headrace.controller.simulation import simulate


def test_a_run_goes_from_its_beginning_to_its_end_in_virtual_time() -> None:
    outcome = simulate(job(), 0)
    assert [life.end for life in outcome.lives] == ["finished"]
    assert outcome.counts.law_holds
    assert outcome.counts.trained == 8 * 4
    assert outcome.state.steps == 8
    assert outcome.state.passes == 8 * 4 * 4
    assert len(outcome.record.batches) == 8
    assert 5 < outcome.seconds < 600, "virtual ones"


def test_equal_arguments_give_equal_traces_and_another_seed_another() -> None:
    first, again, other = simulate(job(), 0), simulate(job(), 0), simulate(job(), 1)
    assert first.trace_hash == again.trace_hash != other.trace_hash
    assert first.state == again.state != other.state
