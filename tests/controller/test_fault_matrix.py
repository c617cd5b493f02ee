"""The fault matrix in virtual time: seeded runs that go wrong in every way the design names end whole, and a bug that
is planted is found by them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from planted_bugs import PLANTS

from headrace.controller.simulation.cases import MODES, RECIPES, RULES, WITH_CRITIC, case_of
from headrace.controller.simulation.verdict import FAULTS, repeat, table, tried, without_effect

SEEDS, PART = (*range(0, 180, 3), 7, 11, 40, 109), 6
"""Each third of the first 180, which have every two of what a case is made of together; and those without which some
fault would take effect under some rule in none. `make soak` has 5,000."""
FOUND_BY = {
    "earliest_deadline_take": 4,
    "no_issue_numbers": 27,
    "tokens_of_an_earlier_issue": 6,
    "critic_steps_on_seal": 7,
    "a_lost_group_keeps_its_deadline_on_any_engine": 4,
    "an_engine_of_a_left_branch_admits": 47,
    "a_group_newer_than_the_return_keeps_its_deadline": 10,
    "an_engine_comes_back_in_the_trainers_turn": 163,
    "a_checkpoint_is_written_of_the_weights_at_hand": 115,
    "a_lent_engine_comes_back_in_the_trainers_time": 5,
}
"""A seed that finds each planted bug, to be tried first."""


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder of this run of the tests: the same for all processes of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if hasattr(request.config, "workerinput") else base


@pytest.mark.parametrize("first", range(0, len(SEEDS), PART))
def test_every_case_ends_finished_within_the_law_and_the_bound(first: int, shared: Path) -> None:
    """Whoever is the last of all parts looks at the table: each fault took effect under each rule."""
    rows = {rule: Counter[str]() for rule in RULES}
    failed = []
    for seed in SEEDS[first : first + PART]:
        rule, took, found = tried(seed)
        rows[rule] += took
        failed += [f"{wrong}\n  repeat it: {repeat(seed)}" for wrong in found[:3]]
    assert not failed, "\n".join(failed)
    (shared / f"matrix_{first}.new").write_text(json.dumps(rows))
    (shared / f"matrix_{first}.new").rename(shared / f"matrix_{first}.json")
    parts = [shared / f"matrix_{part}.json" for part in range(0, len(SEEDS), PART)]
    if all(part.exists() for part in parts):
        for part in parts:
            for rule, took in json.loads(part.read_text()).items():
                rows[rule] += Counter(took) if part.stem != f"matrix_{first}" else Counter()
        assert not without_effect(rows), f"\n{table(rows)}"


def test_the_cases_are_what_they_are_said_to_be() -> None:
    """At least 8 batches of 4 groups of 2, 1 to 3 engines, 2 workers; all modes, recipes and rules, and each two of
    them together."""
    cases = list(map(case_of, SEEDS))
    for case in cases:
        config = case.config
        assert (config.trainer.batches or 0) >= 8
        assert config.rollout.prompts_per_batch >= 4
        assert config.rollout.samples_per_prompt >= 2
        assert case.faults.rollout.workers >= 2
        assert config.deadline_rule == case.rule
    assert {case.replicas for case in cases} == {1, 2, 3}
    assert {case.mode for case in cases if case.config.engine.lent} == set(MODES)
    assert {case.recipe for case in cases if case.config.engine.lent} == set(RECIPES)
    assert len({(case.rule, case.mode) for case in cases}) == len(RULES) * len(MODES)
    assert len({(case.rule, case.recipe) for case in cases}) == len(RULES) * len(RECIPES)
    assert len({(case.recipe, case.mode) for case in cases}) == len(RECIPES) * len(MODES)
    assert set(WITH_CRITIC) < set(RECIPES)
    assert set(FAULTS.values()) == {"rollout", "engine", "actor", "critic", "store"}


@pytest.mark.parametrize("seed", [0, 13])
def test_a_case_is_the_same_each_time(seed: int) -> None:
    assert case_of(seed).run().trace_hash == case_of(seed).run().trace_hash


def test_each_planted_bug_is_looked_for() -> None:
    assert set(FOUND_BY) == set(PLANTS)


@pytest.mark.parametrize("name", FOUND_BY)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS[name](monkeypatch)
    assert any(tried(seed)[2] for seed in [FOUND_BY[name], *SEEDS])


@pytest.mark.slow
@pytest.mark.copied
def test_the_command_that_repeats_a_case_says_what_happened_in_it() -> None:
    command = repeat(0).split()
    told = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, timeout=120, check=False)
    assert told.returncode == 0, told.stderr
    assert "took effect:" in told.stdout
    assert "hash:" in told.stdout
