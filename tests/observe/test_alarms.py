"""Alarms: what a record must show before one rings, and where it is told."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from observe_samples import batch, run, totals
from rich.console import Console

from headrace.observe import alarms, spent
from headrace.observe.alarms import Rule, RunSoFar
from headrace.observe.metrics import ringing
from headrace.observe.record import BatchRecord
from headrace.observe.summary import build_summary
from headrace.viewer.terminal.inspect_text import describe_run
from headrace.viewer.terminal.live import render
from headrace.viewer.terminal.plain import PlainView
from headrace.viewer.terminal.snapshot import take_snapshot

Batches = tuple[BatchRecord, ...]


def curve(field: str, values: list[Any], **others: Any) -> Batches:
    return tuple(batch(number, **{field: value}, **others) for number, value in enumerate(values))


def rings(rule: Rule, batches: Batches, **seen: bool) -> bool:
    return rule(RunSoFar(batches, **seen)) is not None


def test_a_healthy_run_and_a_young_one_ring_nothing() -> None:
    for count in (0, 1, 5, 60):
        batches = tuple(
            batch(
                number, entropy=1.0, reference_kl=0.01, kept_mass=0.95, equal_groups=1, reward_min=0.0, reward_max=1.0
            )
            for number in range(count)
        )
        assert ringing(RunSoFar(batches)) == ()


@pytest.mark.parametrize(
    ("masses", "alarmed"),
    [
        ([0.95] * 5 + [0.84] * 5, True),
        ([0.95] * 5 + [0.86] * 5, False),
        ([0.95] * 5 + [0.1] * 4, False),  # too early to tell
        ([0.95] * 5 + [0.1] * 5 + [0.95] * 5, False),  # it came back
        ([0.95] * 9 + [0.1, 0.1], False),  # two odd batches of five
        ([None] * 20, False),
    ],
)
def test_a_fall_of_the_kept_mass(masses: list[float | None], alarmed: bool) -> None:
    assert rings(alarms.kept_mass_falls, curve("kept_mass", masses)) is alarmed


@pytest.mark.parametrize(
    ("entropies", "alarmed"),
    [
        ([1.0] * 15 + [0.19] * 5, True),
        ([1.0] * 15 + [0.21] * 5, False),
        ([1.0] * 12 + [0.1] * 5, False),  # of 17 batches: whether the reward still rises is not known yet
        ([1.0] * 18 + [0.0, 0.0], False),
        ([1.0] * 15 + [float("nan")] * 5, False),
        ([None] * 20, False),
    ],
)
def test_a_fall_of_the_entropy_while_the_reward_stands(entropies: list[float | None], alarmed: bool) -> None:
    """The reward stays at 0.5, between samples of 0 and 1."""
    batches = curve("entropy", entropies, reward_mean=0.5, reward_min=0.0, reward_max=1.0)
    assert rings(alarms.entropy_falls, batches) is alarmed


def test_entropy_may_fall_while_the_reward_rises_and_once_the_task_is_solved() -> None:
    def fallen(rewards: list[float]) -> Batches:
        entropies = [1.0] * 10 + [0.05] * 20
        return tuple(
            batch(number, entropy=entropy, reward_mean=reward, reward_min=0.0, reward_max=1.0)
            for number, (entropy, reward) in enumerate(zip(entropies, rewards, strict=True))
        )

    assert not rings(alarms.entropy_falls, fallen([0.2] * 10 + [0.4] * 10 + [0.5] * 10))
    assert rings(alarms.entropy_falls, fallen([0.2] * 10 + [0.5] * 20))
    assert not rings(alarms.entropy_falls, fallen([0.2] * 10 + [0.9] * 20))  # nine tenths of the way
    assert rings(alarms.entropy_falls, fallen([0.2] * 10 + [0.89] * 20))


@pytest.mark.parametrize(
    ("kls", "alarmed"),
    [
        ([0.06] * 5, True),
        ([0.05] * 20, False),
        ([0.001] * 17 + [0.06] * 3, True),
        ([0.001] * 18 + [9.0] * 2, False),
        ([0.06] * 4, False),
        ([0.001] * 18 + [float("inf")] * 2, False),
    ],
)
def test_the_kl_of_the_policy_that_sampled(kls: list[float], alarmed: bool) -> None:
    assert rings(alarms.step_kl_rises, curve("approx_kl", kls)) is alarmed


def test_batches_on_which_nothing_was_trained_have_no_kl() -> None:
    assert not rings(alarms.step_kl_rises, curve("approx_kl", [1.0] * 9, trained_tokens=0))


@pytest.mark.parametrize(
    ("kls", "alarmed"),
    [
        ([0.06] * 20 + [0.12] * 5, True),
        ([0.06] * 20 + [0.11] * 5, False),  # not doubled
        ([0.01] * 20 + [0.1] * 5, False),  # still near the reference
        ([0.3] * 25, False),  # far, but it stays there
        ([0.01] * 19 + [0.3] * 5, False),  # of 24 batches
        ([0.06] * 23 + [0.9] * 2, False),
        ([None] * 30, False),
    ],
)
def test_a_rise_of_the_kl_to_the_reference(kls: list[float | None], alarmed: bool) -> None:
    assert rings(alarms.reference_kl_rises, curve("reference_kl", kls)) is alarmed


@pytest.mark.parametrize(
    ("equal", "dropped", "alarmed"),
    [
        ([4] * 5, 0, True),  # of 4 groups each
        ([3] * 5, 0, False),
        ([4] * 4, 0, False),
        ([0] + [4] * 4, 0, True),
        ([4, 4, 1, 1, 1], 0, False),
        ([0] * 5, 76, True),  # dropped by the filter: 76 of 80 groups
        ([0] * 5, 75, False),
        ([None] * 5, 0, False),  # a record that does not have it
        ([None] * 5, 76, True),
    ],
)
def test_all_rewards_equal(equal: list[int | None], dropped: int, alarmed: bool) -> None:
    others = {"dropped_groups": {"zero_spread": dropped, "too_long": 900}} if dropped else {}
    assert rings(alarms.rewards_are_equal, curve("equal_groups", equal, **others)) is alarmed


def timed(spans: list[dict[str, Any]], engines: int = 1, **changes: Any) -> Batches:
    """Batches of ten seconds and 100 samples each, after which the totals have grown by `spans`: those of each of so
    many engines, which add up, and of which `engines_s` has the mean."""
    made = []
    trainer: dict[str, float] = {}
    failed, train, swap, generate = 0, 0.0, 0.0, 0.0
    for number, span in enumerate(spans):
        for name, seconds in span.get("trainer", {}).items():
            trainer[name] = trainer.get(name, 0.0) + seconds
        failed += span.get("failed", 0)
        train += span.get("train", 5.0)
        swap += span.get("swap", 0.0)
        generate += span.get("generate", 10.0)
        made.append(
            batch(
                number,
                totals=totals(
                    10.0 * (number + 1),
                    generated_samples=100 * (number + 1),
                    failed_samples={"timeout": failed},
                    train_s=train,
                    swap_stall_s=engines * swap,
                    generate_s=engines * generate,
                    trainer_s=dict(trainer),
                    engines_s={spent.COMPUTES: generate, spent.SWAPS: swap},
                    busy_s={f"engine {index}": generate for index in range(engines)},
                ),
                **changes,
            )
        )
    return tuple(made)


def waiting(seconds: float, what: str = spent.GENERATION, **others: Any) -> dict[str, Any]:
    return {"trainer": {what: seconds, spent.TRAINS: 10.0 - seconds}, **others}


def test_a_trainer_that_waits() -> None:
    """Ten differences need eleven records; of these the worst does not count."""
    rule = alarms.trainer_waits
    assert rings(rule, timed([waiting(2.1)] * 11))
    assert not rings(rule, timed([waiting(2.0)] * 11))
    assert not rings(rule, timed([waiting(9.0)] * 10))
    assert not rings(rule, timed([waiting(0.5)] * 10 + [waiting(9.9)]))
    # A long wait now and then adds up, though most batches have none: 2 x 9.9 s of 90.
    assert rings(rule, timed([waiting(0.0)] * 8 + [waiting(9.9)] * 3))
    assert not rings(rule, timed([waiting(9.0)] * 11), takes_turns=True)
    assert not rings(rule, timed([waiting(9.0)] * 11, warm_up=True))


def test_on_shared_processors_only_the_time_counts_in_which_nobody_computed() -> None:
    rule = alarms.trainer_waits
    assert not rings(rule, timed([waiting(6.0, generate=9.0)] * 11), shares_processors=True)
    assert rings(rule, timed([waiting(6.0, generate=7.0)] * 11), shares_processors=True)


def test_on_shared_processors_several_engines_leave_idle_what_the_busiest_does() -> None:
    """Two that compute for 6 s of 10 together leave 4 s; what they have added up is more than all."""
    found = alarms.trainer_waits(RunSoFar(timed([waiting(6.0, generate=6.0)] * 11, engines=2), shares_processors=True))
    assert found is not None
    assert found.startswith("nobody computes for 40% of the time")
    busy = {"engine 0": 9.0, "engine 1": 0.0}  # which is away
    batches = tuple(
        replace(one, totals=replace(one.totals, busy_s={name: each * (one.batch + 1) for name, each in busy.items()}))
        for one in timed([waiting(6.0, generate=4.5)] * 11, engines=2)
    )
    assert not rings(alarms.trainer_waits, batches, shares_processors=True)


def test_the_trainers_alarm_says_for_whom() -> None:
    found = alarms.trainer_waits(RunSoFar(timed([waiting(4.0, spent.REWARDS)] * 11)))
    assert found == "the trainer waits 40% of its time, mostly for rewards and environments"


def test_what_nobody_computes_is_not_called_the_trainers_wait() -> None:
    """58 % for generation of which engines computed in all but 37 %: both numbers stand in one view."""
    found = ringing(RunSoFar(timed([waiting(5.8, generate=6.3)] * 11), shares_processors=True))
    assert [alarm.finding for alarm in found] == [
        "nobody computes for 37% of the time, while the trainer waits, mostly for generation"
    ]


@pytest.mark.parametrize(
    ("what", "key"),
    [
        (spent.GENERATION, "engine.max_concurrent_sequences"),
        (spent.REWARDS, "reward.workers"),
        (spent.COLUMNS, "max_tokens_per_microbatch"),
        (spent.CRITIC, "critic.max_tokens_per_microbatch"),
        (spent.EVALUATION, "evaluation.every"),
        (spent.NEW_WEIGHTS, "async.ahead"),
    ],
)
def test_the_trainers_alarm_advises_on_its_cause_alone(what: str, key: str) -> None:
    (alarm,) = ringing(RunSoFar(timed([waiting(4.0, what)] * 11)))
    assert key in alarm.act
    assert ";" not in alarm.act
    assert "`" not in alarm.act


def test_a_new_process_begins_its_times_anew() -> None:
    """Ten records after a resume: too few, though the run has twenty."""
    before, after = timed([waiting(9.0)] * 10), timed([waiting(9.0)] * 11, branch=1)
    assert not rings(alarms.trainer_waits, before + after[:10])
    assert rings(alarms.trainer_waits, before + after)


def test_a_swap_slower_than_a_step() -> None:
    rule = alarms.swap_is_slow
    assert rings(rule, timed([{"swap": 1.1, "train": 1.0}] * 11))
    assert not rings(rule, timed([{"swap": 0.9, "train": 1.0}] * 11))
    assert not rings(rule, timed([{"swap": 0.4, "train": 0.1}] * 11))  # 4 % of the time
    assert not rings(rule, timed([{"swap": 1.1, "train": 1.0}] * 10))
    assert not rings(rule, timed([{"swap": 0.1, "train": 1.0}] * 10 + [{"swap": 9.0, "train": 1.0}]))
    found = rule(RunSoFar(timed([{"swap": 1.5, "train": 1.0}] * 11)))
    assert found == "new weights stall the engines for 1.5 s a batch, which trains in 1.0 s"


def test_the_stall_of_several_engines_is_that_of_one_not_of_all_added_up() -> None:
    """Each stands for 1.2 s a batch, which trains in 2 s."""
    assert not rings(alarms.swap_is_slow, timed([{"swap": 1.2, "train": 2.0}] * 11, engines=2))
    found = alarms.swap_is_slow(RunSoFar(timed([{"swap": 2.4, "train": 2.0}] * 11, engines=2)))
    assert found == "new weights stall the engines for 2.4 s a batch, which trains in 2.0 s"


def test_a_record_without_its_engines_time_rings_by_the_sums_that_it_has() -> None:
    def old(one: BatchRecord) -> BatchRecord:
        return replace(one, totals=replace(one.totals, engines_s={}, busy_s={}))

    slow = tuple(map(old, timed([{"swap": 1.1, "train": 1.0}] * 11)))
    waits = tuple(map(old, timed([waiting(6.0, generate=7.0)] * 11)))
    assert rings(alarms.swap_is_slow, slow)
    assert rings(alarms.trainer_waits, waits, shares_processors=True)


def test_samples_that_fail() -> None:
    """Of 100 samples a batch."""
    rule = alarms.samples_fail
    assert rings(rule, timed([{"failed": 6}] * 11))
    assert not rings(rule, timed([{"failed": 5}] * 11))
    assert not rings(rule, timed([{"failed": 50}] * 10))
    assert not rings(rule, timed([{"failed": 0}] * 10 + [{"failed": 100}]))
    assert rule(RunSoFar(timed([{"failed": 6}] * 11))) == "6% of the samples fail, mostly of timeout"


FALLEN = curve("kept_mass", [0.95] * 5 + [0.5] * 5)


def test_views_show_what_was_seen_and_what_to_do() -> None:
    made = run(10, batches=FALLEN)
    for size in ((120, 30), (80, 23), (64, 20)):
        console = Console(file=io.StringIO(), width=size[0], height=size[1] + 1, record=True)
        console.print(render(take_snapshot(made), *size), end="")
        text = console.export_text()
        assert "ALARM kept mass fell from 0.95" in text
        assert len(text.split("\n")) <= size[1] + 1
    assert "policy" in text
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(describe_run(made, build_summary(made), 100))
    text = " ".join(console.export_text().split())
    assert "ALARM kept mass fell from 0.95 to 0.50" in text
    assert "raise rollout.sampling.top_p and rollout.sampling.top_k, or lower trainer.optimizer.lr" in text
    (alarm,) = build_summary(made)["alarms"]
    assert alarm["metric"] == "kept_mass"


def test_the_plain_view_tells_an_alarm_when_it_begins_to_ring() -> None:
    """Not again with other numbers, nor after a few silent batches; but after many."""
    lines: list[str] = []
    view = PlainView(lines.append)
    masses = [0.95] * 5 + [0.5] * 7 + [0.95] * 6 + [0.5] * 6 + [0.95] * 20 + [0.5] * 6
    told = []
    for count in range(1, len(masses) + 1):
        before = len(lines)
        view.show(take_snapshot(run(count, batches=curve("kept_mass", masses[:count]))))
        told += [count for line in lines[before:] if line.startswith("ALARM kept mass fell from 0.95 to 0.50")]
    # Rung at batches 10 to 14 (the median of the last five is 0.5), 21 to 26 and from 47 on.
    assert told == [10, 47]
