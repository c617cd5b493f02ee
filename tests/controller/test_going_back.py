"""A trainer that is lost goes back to the last commit within the process, and the run goes on; in virtual time."""

from __future__ import annotations

import json

import pytest
from simulated_jobs import check, job

from headrace.controller.simulation.hazards import Hazards, TrainingFaults
from headrace.controller.simulation.machine import DiskFaults
from headrace.controller.simulation.outside import Costs, SimulatedOutside
from headrace.controller.simulation.plan import simulated_plan
from headrace.controller.simulation.simulated_rollouts import RolloutFaults
from headrace.controller.simulation.simulated_run import FOLDER, Faults, Outcome, simulate
from headrace.controller.stopping import StopRequest
from headrace.controller.train import train
from headrace.experience.sample import GroupKey
from headrace.observe.summary import build_summary
from headrace.runtime.protocol import Runtime
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.store import RunReader
from headrace.store.journal import Journal
from headrace.store.media.memory_files import MemoryFiles
from headrace.training.simulated import SimulatedTrainer, TrainerCosts

PPO = {"algorithm__recipe": "ppo"}
EVALUATED = {"data__eval": "nowhere.jsonl", "evaluation__every": 2, "evaluation__max_prompts": 5}


def lost(*deaths: tuple[str, int], in_steps: tuple[tuple[str, int], ...] = ()) -> Faults:
    return Faults(training=TrainingFaults(deaths=deaths, deaths_in_steps=in_steps))


def returns(outcome: Outcome) -> list[tuple[str, str]]:
    """From which version to which."""
    found = [event.data for event in outcome.record.events if event.kind == "went_back"]
    return [(data["from"], data["version"]) for data in found]


def numbers(outcome: Outcome) -> dict[str, object]:
    summary = json.loads(outcome.files.read(FOLDER / "summary.json"))
    assert isinstance(summary, dict)
    assert summary == json.loads(json.dumps(build_summary(outcome.record)))
    return summary


@pytest.mark.parametrize("rule", ["wait", "mask", "drop", "late"])
def test_a_trainer_that_dies_costs_no_life_and_no_group_under_any_rule(rule: str) -> None:
    config = job(**PPO, async__on_deadline=rule, async__ahead=12)
    died = simulate(config, 3, lost(("actor", 5), ("critic", 11)))
    assert len(died.lives) == 1
    assert len(returns(died)) == 2
    assert died.broken == ()
    if rule == "wait":
        check(died, config)
    assert [batch.batch for batch in died.record.batches] == list(range(8))
    assert died.counts.law_holds


def test_running_groups_that_would_be_late_are_named_and_begin_anew() -> None:
    """Back at batch 3 there is room for 12 groups before batch 6: more ran, or were trained since."""
    config = job(**PPO, async__ahead=12, checkpoint__every=3, trainer__batches=12)
    died = simulate(config, 0, lost(("actor", 5)))
    check(died, config)
    told = [event.data for event in died.record.events if event.kind == "reissued"]
    late = [event["prompt"] for event in told if "it would be late" in event["message"]]
    assert len(returns(died)) == 1
    receipts = Journal(FOLDER / "journal", died.files).written(0)
    issues = {str(GroupKey(*receipt.key)): receipt.issue for receipt in receipts}
    assert late
    assert min(issues[key] for key in late) > 0, "one of them came to its end as it was issued first"


@pytest.mark.parametrize("who", ["actor", "critic"])
def test_one_of_the_two_that_dies_in_its_step_leaves_neither_a_step_ahead(who: str) -> None:
    config = job(**PPO)
    died = simulate(config, 0, lost(in_steps=((who, 4),)))
    assert returns(died) == [("v3", "v2~1")]
    check(died, config)
    assert died.critic is not None
    assert died.state.tally == died.critic.tally


@pytest.mark.parametrize("who", ["actor", "critic"])
def test_one_of_the_two_that_dies_in_its_sleep_leaves_the_other_awake(who: str) -> None:
    """The other sleeps by then, and is to load the commit."""
    config = job(**PPO, async__mode="sync", engine__colocated=True)
    whole = simulate(config, 0)
    died = simulate(config, 0, Faults(training=TrainingFaults(deaths_in_sleep=((who, 3),))))
    assert len(returns(died)) == 1
    check(died, config)
    assert died.state == whole.state


@pytest.mark.parametrize("who", ["actor", "critic"])
def test_one_of_the_two_that_dies_as_a_checkpoint_is_written_leaves_the_one_before(who: str) -> None:
    """The second: its batches are trained again, as are those that were trained meanwhile."""
    config = job(**PPO, async__mode="sync")
    whole = simulate(config, 0)
    died = simulate(config, 0, Faults(training=TrainingFaults(deaths_in_writes=((who, 2),))))
    ((left, to),) = returns(died)
    assert to == "v2~1"
    assert left in ("v4", "v5", "v6")
    check(died, config)
    assert died.state == whole.state


def test_training_goes_on_while_a_checkpoint_is_written_and_waits_where_the_next_is_due() -> None:
    costs = Costs(trainer=TrainerCosts(copy_s=0.25, save_s=30.0))
    found = simulate(job(checkpoint__every=1), 0, costs=costs)
    assert len(found.lives) == 1
    told = [event.data for event in found.record.events if event.kind == "checkpoint"]
    assert [each["version"] for each in told] == [f"v{number}" for number in range(1, 9)]
    assert told[0]["waited_s"] == 0.25
    assert all(each["took_s"] > 30.0 for each in told)
    assert all(20.0 < each["behind_s"] < 30.0 for each in told[1:])
    assert all(each["waited_s"] == pytest.approx(each["behind_s"] + 0.25) for each in told[:-1])
    waits = simulate(job(checkpoint__every=1, checkpoint__background=False), 0, costs=costs)
    told = [event.data for event in waits.record.events if event.kind == "checkpoint"]
    assert all(each["waited_s"] == each["took_s"] > 30.0 for each in told)


def test_on_policy_a_return_changes_nothing_of_what_is_trained() -> None:
    """Given the same rollouts, and they are the same: noise does not depend on who was lost when."""
    config = job(async__mode="sync")
    whole, died = simulate(config, 0), simulate(config, 0, lost(("actor", 6), in_steps=(("actor", 8),)))
    assert len(returns(died)) == 2
    assert died.state == whole.state
    assert [batch.staleness for batch in died.record.batches] == [batch.staleness for batch in whole.record.batches]


def test_nothing_trained_is_counted_twice_and_all_that_was_generated_once() -> None:
    """Tokens and seconds of the left branch stay those of the time that they were made in."""
    config = job(**PPO)
    died = simulate(config, 0, lost(in_steps=(("actor", 4),)))
    summary, record = numbers(died), died.record
    assert returns(died)
    samples, groups, tokens = summary["samples"], summary["groups"], summary["tokens"]
    assert isinstance(samples, dict)
    assert isinstance(groups, dict)
    assert isinstance(tokens, dict)
    assert samples["trained"] == 8 * 4 * 4
    assert groups["trained"] == 8 * 4
    assert samples["generated"] == groups["issued"] * 4
    assert set(record.processes) == {0, 1}
    assert summary["wall_s"] == pytest.approx(died.seconds, rel=0.05)
    assert tokens["trained"] == sum(batch.trained_tokens for batch in record.batches)
    assert tokens["generated"] >= tokens["trained"]


def test_an_evaluation_of_a_version_that_was_taken_back_is_made_again() -> None:
    config = job(**EVALUATED)
    died = simulate(config, 0, lost(in_steps=(("actor", 6),)))
    assert returns(died)
    evaluated = [each.number for each in died.record.evaluations]
    assert evaluated == sorted(set(evaluated))
    assert evaluated[-1] == 8


def test_the_best_checkpoint_is_of_the_line_that_stands() -> None:
    config = job(**EVALUATED, checkpoint__keep_best="eval", checkpoint__every=3)
    died = simulate(config, 0, lost(in_steps=(("actor", 6),)))
    assert returns(died)
    assert died.status == "finished"
    best = died.record.best
    assert best is not None
    values = {each.number: each.score for each in died.record.evaluations}
    assert best.value == values[best.number]


def test_three_in_a_row_without_a_commit_are_borne_and_the_fourth_ends_the_life() -> None:
    config = job(checkpoint__every=8)
    borne = simulate(config, 0, lost(*[("actor", at) for at in (3, 5, 7)]))
    assert [life.end for life in borne.lives] == ["finished"]
    assert [to for _, to in returns(borne)] == ["v0~1", "v0~2", "v0~3"]
    ended = simulate(config, 0, lost(*[("actor", at) for at in (3, 5, 7, 9)]))
    assert [life.end.partition(":")[0] for life in ended.lives] == ["WorkerLost", "finished"]
    check(ended, config)


def test_a_disk_that_is_full_meanwhile_ends_the_life_as_at_any_other_time() -> None:
    config = job(checkpoint__every=2)
    at = simulate(config, 0, lost(("actor", 6)))
    (event,) = [each for each in at.record.events if each.kind == "trainer_lost"]
    began = event.at - at.record.events[0].at
    full = Faults(training=TrainingFaults(deaths=(("actor", 6),)), disk=DiskFaults(full=((began + 1.0, began + 30.0),)))
    ended = simulate(config, 0, full)
    assert [life.end.partition(":")[0] for life in ended.lives] == ["DiskFull", "finished"]
    check(ended, config)


def test_the_same_deaths_give_the_same_trace() -> None:
    config, faults = job(**PPO, async__ahead=12), lost(("actor", 5), in_steps=(("critic", 6),))
    assert simulate(config, 2, faults).trace_hash == simulate(config, 2, faults).trace_hash


def test_told_to_stop_while_it_goes_back_the_run_leaves_with_its_last_commit() -> None:
    """The trainer, which is made anew, does not come in an hour."""
    config, files, took = job(**PPO), MemoryFiles(), list[float]()
    plan = simulated_plan(config, prompts=100, slots=64, max_context=1 << 20, vocab_size=1_000)

    class NeverThere(SimulatedOutside):
        async def _renewed(self, trainer: SimulatedTrainer, runtime: Runtime) -> None:
            stop.request("SIGTERM")
            await runtime.clock.sleep(3_600.0)

    async def life(runtime: VirtualRuntime, kind: type[SimulatedOutside], deaths: tuple[tuple[str, int], ...]) -> str:
        hazards = Hazards(TrainingFaults(deaths_in_steps=deaths))
        outside = kind(runtime, files, Costs(), {}, RolloutFaults(), hazards, is_on=lambda: True)
        ended = await train(plan, FOLDER, "new" if deaths else "resume", stop=stop, outside=outside)
        took.append(runtime.clock.now())
        assert sorted(batch.batch for batch in ended.record.batches)[-1] == (2 if deaths else 7)
        return ended.status

    files.make_folder(FOLDER)
    stop = StopRequest(signals=())
    assert run_virtually(lambda runtime: life(runtime, NeverThere, (("actor", 4),))) == "stopped"
    assert took[0] < 600.0
    with RunReader(FOLDER, files) as reader:
        (told,) = [event.data for event in reader.events.read() if event.kind == "stopped"]
        assert (reader.status().name, told) == ("stopped", {"version": "v2", "reason": "SIGTERM"})
    stop = StopRequest(signals=())
    assert run_virtually(lambda runtime: life(runtime, SimulatedOutside, ())) == "finished"
    with RunReader(FOLDER, files) as reader:
        counts = reader.counts()
        assert (counts.law_holds, counts.trained, counts.running, counts.ready) == (True, 8 * 4, 0, 0)
