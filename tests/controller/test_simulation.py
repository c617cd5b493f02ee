"""Whole runs of the real controller in virtual time: what is trained, what a power cut leaves, what a seed fixes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulated_jobs import check, job, trained_groups

from headrace.config import ConfigError
from headrace.controller.simulation.machine import DiskFaults
from headrace.controller.simulation.outside import Costs
from headrace.controller.simulation.simulated_rollouts import RolloutFaults
from headrace.controller.simulation.simulated_run import Faults, Outcome, simulate
from headrace.engines.member import Member
from headrace.engines.pool import EnginePool
from headrace.engines.simulated_answers import Answers
from headrace.engines.simulated_costs import EngineFaults
from headrace.experience.sample import GroupKey
from headrace.store import RunReader

MODES = {
    "sync": {"async__mode": "sync"},
    "one_step_off": {"async__mode": "one_step_off"},
    "staleness 1": {"async__max_staleness": 1},
    "staleness 2": {"async__max_staleness": 2},
    "staleness 4": {"async__max_staleness": 4, "async__ahead": 20},
}
RECIPES = {
    "plain": {},
    "ppo": {"algorithm__recipe": "ppo"},
    "hybrid reference": {"algorithm__kl__coefficient": 0.01, "reference__placement": "hybrid"},
    "own reference that follows": {"algorithm__kl__coefficient": 0.01, "reference__refresh_every": 3},
    "several epochs": {"algorithm__epochs_per_batch": 2, "async__mode": "sync"},
    "own proximal": {"algorithm__recipe": "m2po", "proximal__placement": "own"},
}
TAIL = Costs(answers=Answers(mean_tokens=60, spread=1.5))
"""Most answers are short, and a few of them very long."""


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_trains_each_group_once_within_its_bound(mode: str) -> None:
    config = job(**MODES[mode])
    outcome = simulate(config, 0)
    assert [life.end for life in outcome.lives] == ["finished"]
    check(outcome, config)
    assert outcome.state.steps == 8


def test_the_staleness_that_may_be_is_reached() -> None:
    config = job(**MODES["staleness 4"], trainer__batches=12)
    outcome = simulate(config, 0, costs=TAIL)
    check(outcome, config)
    assert max(staleness for batch in outcome.record.batches for staleness in batch.staleness) == 4


@pytest.mark.parametrize("rule", ["wait", "mask", "drop", "late"])
def test_every_rule_for_what_is_due(rule: str) -> None:
    config = job(async__max_staleness=1, async__on_deadline=rule, async__ahead=8, trainer__batches=10)
    outcome = simulate(config, 3, costs=TAIL)
    check(outcome, config)
    batches = outcome.record.batches
    took_effect = {
        "wait": sum(batch.step_s for batch in batches) > 0,
        "mask": sum(batch.masked_tokens for batch in batches) > 0,
        "drop": sum(outcome.counts.dropped.values()) > 0,
        "late": sum(batch.late_groups for batch in batches) > 0,
    }
    assert took_effect[rule]


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes(recipe: str) -> None:
    config = job(**RECIPES[recipe])
    outcome = simulate(config, 0)
    assert outcome.status == "finished"
    assert outcome.counts.law_holds
    assert outcome.counts.trained == 32
    if recipe != "several epochs":
        check(outcome, config)
    if recipe == "ppo":
        assert all(batch.critic_loss is not None for batch in outcome.record.batches)


def test_a_surplus_hides_a_long_tail() -> None:
    """On-policy, with heavy tails: the slowest of a batch is no longer waited for."""
    shape = {"rollout__prompts_per_batch": 8, "rollout__samples_per_prompt": 2, "trainer__batches": 16}
    plain, more = (
        simulate(job(async__mode="sync", rollout__oversample=each, rollout__filters=[], **shape), 0, costs=TAIL)
        for each in (1.0, 1.5)
    )
    waits = [one.record.batches[-1].totals.wait_s["actor: rows of the batch"] for one in (plain, more)]
    assert sum(plain.counts.dropped.values()) == 0
    assert 0 < sum(more.counts.dropped.values()) <= 15 * 4, "the last batch has no surplus"
    assert waits[1] < 0.7 * waits[0]


def test_evaluations_are_made_beside_training() -> None:
    config = job(data__eval="nowhere.jsonl", evaluation__every=3, evaluation__max_prompts=5)
    outcome = simulate(config, 0)
    check(outcome, config)
    assert [each.number for each in outcome.record.evaluations] == [0, 3, 6, 8]


def test_engines_that_are_lost_for_good_in_an_evaluation_behind_the_last_batch_end_the_run_with_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last batch ends while version 1, which was there before it, is still being evaluated."""

    async def never(self: EnginePool, member: Member, receiver: object = None) -> None:
        raise MemoryError("no memory")

    held_out = {"data__eval": "nowhere.jsonl", "evaluation": {"every": 1, "max_prompts": 10, "max_new_tokens": 400}}
    short = {"rollout__samples_per_prompt": 2, "rollout__sampling": {"max_new_tokens": 40}, "trainer__batches": 2}
    config = job(**held_out, **short, checkpoint__every=100, engine__return_deadline_s=30.0)
    last = simulate(config, 0).record.batches[-1]
    monkeypatch.setattr(EnginePool, "come_back", never)
    dies = EngineFaults(dies_at=last.totals.elapsed_s + 1.0)
    died = simulate(config, 0, Faults(engine=(dies,)), limit_s=1_000.0)
    assert [life.end.partition(":")[0] for life in died.lives] == ["EnginesLost", "finished"]
    check(died, config)
    told = [event.data["version"] for event in died.record.events if event.kind == "checkpoint"]
    assert told == ["v2"], "what was trained was committed before the run ended"
    assert [each.number for each in died.record.evaluations] == [0, 2]


@pytest.mark.parametrize("mode", MODES)
def test_a_power_cut_in_the_middle_costs_nothing_that_was_promised(mode: str) -> None:
    config = job(**MODES[mode])
    whole = simulate(config, 0)
    cut = simulate(config, 0, Faults(power_cuts_at=(whole.seconds / 2,)))
    assert [life.end for life in cut.lives] == ["power cut", "finished"]
    check(cut, config)


@pytest.mark.parametrize("after", range(3, 800, 53))
def test_on_policy_a_power_cut_anywhere_changes_nothing_of_what_is_trained(after: int) -> None:
    config = job(**MODES["sync"])
    whole = simulate(config, 0)
    cut = simulate(config, 0, Faults(power_cuts_after=(after, after // 2)))
    ends = [life.end for life in cut.lives]
    assert set(ends[:-1]) == {"power cut"}
    check(cut, config)
    assert cut.state == whole.state
    assert _keys(cut) == _keys(whole)


@pytest.mark.parametrize("after", range(11, 800, 97))
def test_a_power_cut_anywhere_in_an_asynchronous_run_with_a_critic(after: int) -> None:
    config = job(**RECIPES["ppo"])
    cut = simulate(config, 0, Faults(power_cuts_after=(after,)))
    assert [life.end for life in cut.lives] == ["power cut", "finished"]
    check(cut, config)


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("mode", ["sync", "staleness 4"])
def test_an_engine_that_dies_comes_back_and_the_run_never_ends(mode: str, replicas: int) -> None:
    config = job(**MODES[mode], engine={"replicas": replicas})
    died = simulate(config, 0, Faults(engine=(EngineFaults(dies_at=5.0),)))
    (life,) = died.lives
    assert life.end == "finished"
    check(died, config)
    with RunReader(Path("/run"), died.files) as reader:
        kinds = [event.kind for event in reader.events.read()]
    assert kinds.count("engine_died") == kinds.count("engine_back") == 1
    assert "failed_sample" not in kinds


@pytest.mark.parametrize(("workers", "rows"), [(1, 2), (1, 3), (2, 3)])
def test_on_policy_rows_that_end_every_worker_are_left_out(workers: int, rows: int) -> None:
    dying = RolloutFaults(workers=workers, poison=tuple((0, row) for row in range(rows)))
    outcome = simulate(job(async__mode="sync", data__shuffle=False), 0, Faults(rollout=dying))
    assert [life.end for life in outcome.lives] == ["finished"]


def test_swaps_that_fail_or_are_late_cost_staleness_and_nothing_else() -> None:
    config = job(**MODES["staleness 4"])
    faults = EngineFaults(late_swaps={2: 5.0, 5: 3.0}, failing_swaps=frozenset({1}), slow=((5.0, 15.0, 4.0),))
    smooth, rough = simulate(config, 0), simulate(config, 0, Faults(engine=(faults,)))
    check(rough, config)
    assert rough.seconds > smooth.seconds
    with RunReader(Path("/run"), rough.files) as reader:
        assert sum(event.kind == "update_failed" for event in reader.events.read()) == 1


def test_equal_arguments_give_equal_traces_and_another_seed_another() -> None:
    first, again, other = simulate(job(), 0), simulate(job(), 0, keeps_trace=True), simulate(job(), 1)
    assert first.trace_hash == again.trace_hash != other.trace_hash
    assert first.state == again.state != other.state
    assert any(" swapped " in line for line in again.trace)


_CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
earlier = [object() for _ in range(int(sys.argv[2]))]
kept = earlier[:: 3]
del earlier
from simulated_jobs import job
from headrace.controller.simulation.simulated_run import Faults, simulate
cut = Faults(power_cuts_after=(400,))
print(simulate(job(algorithm__recipe="ppo", async__on_deadline="drop", async__ahead=12), 5, cut).trace_hash)
"""


@pytest.mark.slow
@pytest.mark.copied
def test_the_trace_of_a_seed_is_the_same_in_every_process() -> None:
    def begin(hash_seed: str, allocations: int) -> subprocess.Popen[str]:
        arguments = [sys.executable, "-c", _CHILD, str(Path(__file__).parents[1] / "helpers"), str(allocations)]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True)

    first, second = (process.communicate(timeout=120)[0] for process in [begin("1", 0), begin("2", 100_001)])
    assert first == second != ""


def _keys(outcome: Outcome) -> list[tuple[int, GroupKey]]:
    return [(batch, group.key) for batch, group in trained_groups(outcome)]


def test_a_full_disk_and_a_broken_one_end_the_run_which_goes_on_when_they_are_mended() -> None:
    config = job()
    seconds = simulate(config, 0).seconds
    window = ((seconds / 3, seconds / 3 + 20.0),)
    full = simulate(config, 0, Faults(disk=DiskFaults(full=window)))
    assert full.lives[0].end.startswith("DiskFull: no space left while writing /run/")
    check(full, config)
    broken = simulate(config, 0, Faults(disk=DiskFaults(failing_syncs=window)))
    assert broken.lives[0].end.startswith("StoreError: cannot write /run/")
    check(broken, config)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reward__model__path": "somewhere"}, "reward models and judges are not simulated"),
        ({"rollout__sampling__top_p": 0.9}, "kept sets are not simulated"),
        ({"data__rollouts": "somewhere"}, "only runs that generate and train"),
    ],
)
def test_what_is_not_simulated_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        simulate(job(**change), 0)


@pytest.mark.parametrize("at", [3.0, 5.0])
def test_an_engine_that_dies_while_the_disk_is_full_ends_the_run_which_goes_on_when_it_is_mended(at: float) -> None:
    """Its death cannot be recorded, and is noticed by whoever asks it for tokens: nobody waits for ever."""
    config = job()
    faults = Faults(engine=(EngineFaults(dies_at=at),), disk=DiskFaults(full=((at - 0.001, at + 15.0),)))
    died = simulate(config, 0, faults, limit_s=600)
    assert died.lives[0].end.startswith("DiskFull")
    check(died, config)


def test_a_slow_disk_costs_time_and_nothing_else() -> None:
    config = job(**MODES["sync"])
    usual, slow = simulate(config, 0), simulate(config, 0, Faults(disk=DiskFaults(slow=((0.0, 1e9, 200.0),))))
    check(slow, config)
    assert slow.state == usual.state
    assert slow.seconds > usual.seconds + 1
