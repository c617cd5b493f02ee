"""The schedule's promises, whatever happens around it, in whatever order."""

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import example, find, given, settings
from hypothesis import strategies as st
from schedule_walk import Circumstances, Walk

from headrace.experience.sample import GroupKey
from headrace.experience.schedule import Schedule, ScheduleError, reachable_staleness


def key(position: int) -> GroupKey:
    return GroupKey(0, position, 0)


def schedule(**changes: object) -> Schedule:
    settings = {
        "prompts_per_batch": 1,
        "max_staleness": 2,
        "total_batches": 10,
        "on_deadline": "wait",
        "ahead": 10,
    }
    return Schedule(**{**settings, **changes})  # type: ignore[arg-type]


class CheckedSchedule(Schedule):
    """Looks at the invariant of `wait` after every event."""

    def take(self):
        if self.on_deadline == "wait":
            self.check()
        placements = super().take()
        if self.on_deadline == "wait":
            self.check()
        return placements


class BytesBindAll(Schedule):
    """The rule that looks right and is not: whatever has no bytes in the table waits."""

    def may_start(self, version: int, *, has_bytes: bool = True) -> bool:
        return has_bytes and super().may_start(version)


class EarliestDeadlineFirst(Schedule):
    """The rule that looks right and is not: any ready group, earliest deadline first."""

    def _next(self):
        ready = [group for group in self._live.values() if group.arrival is not None]
        return min(ready, key=lambda group: (group.deadline, group.arrival), default=None)

    def check(self) -> None:
        pass


@st.composite
def circumstances(draw: st.DrawFn) -> Circumstances:
    batch = draw(st.integers(1, 5))
    rule = draw(st.sampled_from(["wait", "mask", "drop", "late"]))
    return Circumstances(
        prompts_per_batch=batch,
        max_staleness=draw(st.integers(0, 4)),
        total_batches=draw(st.integers(1, 12)),
        on_deadline=rule,
        prompts=draw(st.integers(0, 70)),
        ahead=draw(st.integers(batch, 3 * batch + 5)),
        surplus=draw(st.integers(0, 2 * batch)) if rule == "drop" else 0,
        engines=draw(st.integers(1, 3)),
        step=draw(st.sampled_from([0.02, 1.0, 50.0])),
        load=draw(st.sampled_from([0.02, 1.0, 50.0])),
        drop_share=draw(st.sampled_from([0.0, 0.2, 0.6])),
        fail_share=draw(st.sampled_from([0.0, 0.2])),
        engine_death_share=draw(st.sampled_from([0.0, 0.2])),
        restore_share=draw(st.sampled_from([0.0, 0.2])),
        kept_share=draw(st.sampled_from([0.0, 0.5, 1.0])),
        commit_every=draw(st.integers(1, 4)),
        room=draw(st.sampled_from([math.inf, 0.0, 0.5, 1.0, 2.5, 7.0])),
        seed=draw(st.integers(0, 10_000)),
    )


@settings(max_examples=400, deadline=None)
@given(circumstances())
def test_every_run_ends_within_the_bound_and_trains_nothing_twice(around: Circumstances) -> None:
    outcome = Walk(around, CheckedSchedule).run()
    assert outcome.finished, "deadlock"
    if around.on_deadline in ("wait", "drop"):
        assert outcome.worst_staleness <= around.max_staleness
        assert outcome.late == 0
    if around.on_deadline == "wait":
        assert outcome.handed_back == 0
        assert outcome.refused == 0, "all that were begun fit again"
    if not around.restore_share:
        assert outcome.fullest <= max(around.room, around.prompts_per_batch)
    prompts = [(group.epoch, group.position) for group, _, _ in outcome.trained]
    assert len(prompts) == len(set(prompts))
    if not around.drop_share:
        assert len(prompts) == min(around.prompts, around.total_batches * around.prompts_per_batch), "none is lost"
    assert all(size == around.prompts_per_batch for size in outcome.batch_sizes[:-1])


@settings(max_examples=100, deadline=None)
@given(circumstances())
def test_wait_wastes_nothing(around: Circumstances) -> None:
    shares = {"drop_share": 0.0, "fail_share": 0.0, "engine_death_share": 0.0}
    calm = replace(around, on_deadline="wait", surplus=0, **shares)
    outcome = Walk(calm, CheckedSchedule).run()
    assert len(outcome.trained) == min(calm.prompts, calm.total_batches * calm.prompts_per_batch)


def test_going_on_under_the_deadline_of_a_new_start_is_caught_by_the_same_property() -> None:
    class DueLater(CheckedSchedule):
        """Tokens of an older version, under the deadline that the engine's would give."""

        def may_go_on(self, version: int) -> bool:
            return super().may_go_on(self.batch)

        def go_on(self, key: GroupKey, version: int) -> int:
            return super().go_on(key, self.batch)

    def broken(make: type[Schedule]) -> int:
        """Of 60 runs in which crashes come often, engines lag, and all tokens of what ran are kept."""
        often = Circumstances(
            prompts_per_batch=2,
            max_staleness=2,
            total_batches=12,
            on_deadline="wait",
            prompts=70,
            ahead=11,
            engines=2,
            step=50.0,
            restore_share=0.2,
            kept_share=1.0,
        )
        return sum(Walk(replace(often, seed=seed), make).run().worst_staleness > 2 for seed in range(60))

    assert broken(DueLater) > 0
    assert broken(CheckedSchedule) == 0


def test_plain_earliest_deadline_first_is_caught_by_the_same_property() -> None:
    def breaks(around: Circumstances) -> bool:
        worst = Walk(around, EarliestDeadlineFirst).run().worst_staleness
        return around.on_deadline == "wait" and worst > around.max_staleness

    find(circumstances(), breaks, settings=settings(max_examples=5_000, deadline=None), random=Random(0))


def test_bytes_that_bind_the_batch_at_hand_are_caught_by_the_same_property() -> None:
    find(
        circumstances(),
        lambda around: not Walk(around, BytesBindAll).run().finished,
        settings=settings(deadline=None),
        random=Random(0),
    )


def test_without_bytes_only_what_the_batch_needs_starts() -> None:
    """B = 2. A drop, and a batch that is trained, make place; what would run ahead waits for bytes."""
    plan = schedule(prompts_per_batch=2)
    for position in range(2):
        assert plan.may_start(0, has_bytes=False)
        plan.start(key(position), 0)
    assert not plan.may_start(0, has_bytes=False)
    assert plan.may_start(0)
    plan.drop(key(0))
    assert plan.may_start(0, has_bytes=False)
    plan.start(key(2), 0)
    for position in (1, 2):
        plan.ready(key(position))
    plan.take()
    assert not plan.may_start(0, has_bytes=False), "the batch is full"
    plan.step()
    assert plan.may_start(0, has_bytes=False)


@settings(max_examples=100, deadline=None)
@given(circumstances())
def test_on_policy_bytes_decide_nothing(around: Circumstances) -> None:
    strict = replace(around, max_staleness=0, surplus=0, room=0.0)
    assert Walk(strict).run().trained == Walk(replace(strict, room=math.inf)).run().trained


def test_the_docstrings_counterexample() -> None:
    """B = 1, max_staleness = 2: the group started at version 1 ends first and must not take batch 1."""
    plan = schedule(ahead=4)
    for position in range(3):
        assert plan.start(key(position), version=0) == 2
    plan.ready(key(0))
    assert [placement.key for placement in plan.take()] == [key(0)]
    plan.step()
    assert plan.start(key(3), version=1) == 3
    plan.ready(key(3))
    assert plan.take() == []
    plan.ready(key(2))
    assert [placement.key for placement in plan.take()] == [key(2)]


def test_on_policy_starts_exactly_one_batch_for_each_version() -> None:
    plan = schedule(prompts_per_batch=2, max_staleness=0)
    plan.start(key(0), 0)
    plan.start(key(1), 0)
    assert not plan.may_start(0)
    plan.drop(key(0))
    assert plan.may_start(0), "a drop refunds the gate"
    plan.start(key(2), 0)
    for position in (1, 2):
        plan.ready(key(position))
    assert len(plan.take()) == 2
    assert not plan.may_start(0)
    plan.step()
    assert not plan.may_start(0), "an engine that has not loaded version 1 may not start for batch 1"
    assert plan.shut_by(0) == "staleness"
    assert plan.shut_by(1) is None
    assert plan.may_start(1)


def test_mask_goes_on_without_the_group_that_is_due() -> None:
    plan = schedule(prompts_per_batch=1, max_staleness=1, on_deadline="mask")
    plan.start(key(0), 0)
    plan.start(key(1), 0)
    plan.ready(key(1))
    plan.take()
    assert plan.step() == []
    plan.start(key(2), 1)
    plan.ready(key(2))
    assert [placement.key for placement in plan.take()] == [key(2)]
    plan.step()
    plan.ready(key(0))
    (late,) = plan.take()
    assert (late.batch, late.deadline, late.is_late) == (2, 1, True)


def test_drop_hands_the_overdue_group_back() -> None:
    plan = schedule(prompts_per_batch=1, max_staleness=1, on_deadline="drop")
    plan.start(key(0), 0)
    plan.start(key(1), 0)
    for batch, position in enumerate((1, 2)):
        if batch:
            plan.start(key(2), 1)
        plan.ready(key(position))
        plan.take()
        overdue = plan.step()
    assert overdue == [key(0)]


def test_on_policy_the_first_that_are_ready_make_the_batch_and_the_rest_are_overdue_once_it_is_sealed() -> None:
    plan = schedule(prompts_per_batch=2, max_staleness=0, on_deadline="drop", surplus=2)
    for position in range(4):
        plan.start(key(position), 0)
    assert not plan.may_start(0)
    plan.ready(key(3))
    plan.take()
    assert plan.overdue() == [], "all could still enter"
    plan.ready(key(1))
    plan.ready(key(0))
    assert [placement.key for placement in plan.take()] == [key(1)]
    assert plan.overdue() == [key(0), key(2)], "the finished one too"
    for position in (0, 2):
        plan.drop(key(position))
    assert not plan.may_start(0), "nobody could enter the sealed batch"
    assert plan.step() == []
    assert not plan.may_start(0)
    assert plan.may_start(1)


def test_a_surplus_within_the_bound_stays_for_the_next_batch() -> None:
    plan = schedule(prompts_per_batch=2, max_staleness=1, on_deadline="drop", surplus=1)
    for position in range(5):
        plan.start(key(position), 0)
    assert not plan.may_start(0), "two batches and one more"
    for position in (0, 1, 2):
        plan.ready(key(position))
    assert len(plan.take()) == 2
    assert plan.overdue() == []
    assert plan.step() == []
    assert [placement.key for placement in plan.take()] == [key(2)]
    plan.ready(key(4))
    plan.take()
    assert plan.overdue() == [key(3)], "batch 1 was its last"


def test_an_engine_that_is_behind_starts_no_surplus_for_a_batch_that_is_done() -> None:
    plan = schedule(prompts_per_batch=1, max_staleness=0, on_deadline="drop", surplus=5)
    plan.start(key(0), 0)
    plan.ready(key(0))
    plan.take()
    plan.step()
    assert not plan.may_start(0)
    assert plan.start(key(1), 1) == 1


def test_the_last_batch_starts_no_surplus() -> None:
    plan = schedule(prompts_per_batch=2, max_staleness=1, total_batches=2, on_deadline="drop", surplus=3)
    for position in range(4):
        plan.start(key(position), 0)
    assert not plan.may_start(0)
    plan.ready(key(0))
    plan.take()
    assert not plan.may_start(0)
    plan.drop(key(1))
    assert plan.may_start(0)


@pytest.mark.parametrize("rule", ["wait", "mask", "late"])
def test_a_surplus_that_cannot_be_shed_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match=f"surplus is 1 with on_deadline {rule}"):
        schedule(on_deadline=rule, surplus=1)


def stalest(plan: Schedule, *, engines_lag: bool) -> int:
    """The worst staleness of a run whose rollouts end as soon as they start. `engines_lag`: what a step makes room for
    starts before the engine has the new version, as it does in a run."""
    versions: dict[GroupKey, int] = {}
    worst = loaded = 0

    def take() -> None:
        nonlocal worst
        for placement in plan.take():
            worst = max(worst, placement.batch - versions[placement.key])
        for late in plan.overdue():
            plan.drop(late)

    def start() -> None:
        while plan.may_start(loaded):
            group = key(len(versions))
            versions[group] = loaded
            plan.start(group, loaded)
            plan.ready(group)
            take()

    while not plan.is_finished:
        start()
        for late in plan.step():
            plan.drop(late)
        take()
        if engines_lag:
            start()
        loaded = plan.batch
    return worst


@st.composite
def gates(draw: st.DrawFn) -> dict[str, object]:
    """Settings of a schedule, with batches enough for staleness to come to its height."""
    batch, rule = draw(st.integers(1, 5)), draw(st.sampled_from(["wait", "mask", "drop", "late"]))
    surplus = draw(st.integers(0, 2 * batch)) if rule == "drop" else 0
    return {
        "prompts_per_batch": batch,
        "max_staleness": draw(st.integers(0, 8)),
        "total_batches": 40,
        "on_deadline": rule,
        "ahead": draw(st.integers(batch + surplus, 10 * batch + surplus)),
        "surplus": surplus,
    }


@settings(max_examples=300, deadline=None)
@given(gates())
def test_instant_rollouts_reach_the_staleness_that_is_told_and_never_pass_it(gate: dict) -> None:
    told = reachable_staleness(gate["prompts_per_batch"], gate["max_staleness"], gate["ahead"])
    assert stalest(Schedule(**gate), engines_lag=True) == told
    assert told - 1 <= stalest(Schedule(**gate), engines_lag=False) <= told


@pytest.mark.parametrize(("ahead", "told"), [(16, 2), (32, 3), (33, 4), (96, 7), (97, 8), (144, 8)])
def test_the_reachable_staleness_by_hand(ahead: int, told: int) -> None:
    """Batches of 16, bound 8. With 32 ahead: 16 enter the batch when it opens, 32 are behind them, and the last of
    these is in the second batch after; one more as its version is that of before the step."""
    assert reachable_staleness(16, 8, ahead) == told


@settings(max_examples=200, deadline=None)
@given(
    batch=st.integers(1, 4),
    max_staleness=st.integers(0, 6),
    ahead=st.integers(0, 20),
    step=st.sampled_from([0.01, 0.3, 1.0, 100.0]),
    engines=st.integers(1, 3),
    seed=st.integers(0, 1_000),
)
def test_rollouts_that_take_equally_long_stay_within_it(
    batch: int, max_staleness: int, ahead: int, step: float, engines: int, seed: int
) -> None:
    """However fast the trainer is, where engines take a version within the time of a step."""
    around = Circumstances(
        prompts_per_batch=batch,
        max_staleness=max_staleness,
        total_batches=30,
        on_deadline="wait",
        prompts=10_000,
        ahead=batch + ahead,
        engines=engines,
        step=step,
        in_turn=True,
        seed=seed,
    )
    outcome = Walk(around, CheckedSchedule).run()
    assert outcome.finished
    assert outcome.worst_staleness <= reachable_staleness(batch, max_staleness, batch + ahead)


def test_the_last_batch_may_be_short() -> None:
    plan = schedule(prompts_per_batch=4)
    plan.start(key(0), 0)
    plan.ready(key(0))
    plan.take()
    assert not plan.is_sealed
    plan.dataset_spent()
    assert plan.is_sealed
    plan.step()
    assert plan.is_finished


def test_events_out_of_order_are_faults() -> None:
    plan = schedule(ahead=1)
    with pytest.raises(ScheduleError, match="not live"):
        plan.ready(key(0))
    plan.start(key(0), 0)
    with pytest.raises(ScheduleError, match="may not start"):
        plan.start(key(1), 0)
    with pytest.raises(ScheduleError, match="free places"):
        plan.step()
    plan.ready(key(0))
    with pytest.raises(ScheduleError, match="ready already"):
        plan.ready(key(0))


def test_restore_refuses_deadlines_that_cannot_be_met() -> None:
    with pytest.raises(ScheduleError, match="2 groups are due by batch 3"):
        schedule().restore(3, [(key(0), 3), (key(1), 3)])


@example(ahead=0)
@given(st.integers(-3, 3))
def test_ahead_below_a_batch_is_refused(ahead: int) -> None:
    with pytest.raises(ValueError, match="a batch could never fill"):
        schedule(prompts_per_batch=4, ahead=ahead)


def test_what_shuts_the_gate_is_told() -> None:
    """Batches of one, two batches, one version more than the batch at hand, two groups ahead."""
    plan = Schedule(prompts_per_batch=1, max_staleness=1, total_batches=3, on_deadline="wait", ahead=1)
    assert plan.shut_by(0) is None
    plan.start(GroupKey(0, 0, 0), 0)
    assert plan.shut_by(0) == "ahead"
    plan.ready(GroupKey(0, 0, 0))
    plan.take()
    plan.start(GroupKey(0, 1, 0), 0)
    assert plan.shut_by(0) == "staleness", "two groups for versions 0 and 1 are started"
    assert plan.shut_by(1) == "ahead"
    plan.step()
    assert plan.shut_by(1, has_bytes=False) == "ahead"
    plan.ready(GroupKey(0, 1, 0))
    plan.take()
    assert plan.shut_by(1, has_bytes=False) == "bytes"
    plan.start(GroupKey(0, 2, 0), 1)
    assert plan.shut_by(2) == "prompts", "all three batches have their groups"


def test_a_spent_dataset_shuts_the_gate() -> None:
    plan = Schedule(prompts_per_batch=1, max_staleness=1, total_batches=3, on_deadline="wait", ahead=1)
    plan.dataset_spent()
    assert plan.shut_by(0) == "prompts"


@pytest.mark.parametrize(("rule", "may"), [("wait", False), ("mask", True)])
def test_a_group_goes_on_only_where_the_invariant_holds_with_it(rule: str, may: bool) -> None:
    """Batches of one, one version more: with two groups due at 1 batches 0 and 1 are full, and a third due then would
    have no place. Under `mask` it may be late."""
    plan = Schedule(prompts_per_batch=1, max_staleness=1, total_batches=4, on_deadline=rule, ahead=2)  # type: ignore[arg-type]
    for position in range(2):
        plan.start(GroupKey(0, position, 0), 0)
    assert plan.may_go_on(0) is may
    assert plan.may_go_on(1), "due at 2, where there is a place"
    if not may:
        with pytest.raises(ScheduleError, match="may not go on from tokens of version 0"):
            plan.go_on(GroupKey(0, 2, 0), 0)
