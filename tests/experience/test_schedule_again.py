"""Groups that are issued again, and a schedule that goes back while they run: nothing is trained too late."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from headrace.experience.sample import GroupKey
from headrace.experience.schedule import Schedule, ScheduleError


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


class Plays:
    """Groups that get tokens, and what is the oldest of them, around a schedule of `wait`, while work is lost and the
    trainer goes back."""

    def __init__(self, plan: Schedule, draw: st.DataObject, *, keeps_tokens: bool = False) -> None:
        self.plan = plan
        self.draw = draw
        self.keeps_tokens = keeps_tokens
        """Planted: what is issued again goes on from the tokens that it had."""
        self.oldest: dict[GroupKey, int] = {}
        """Of each group that is live the least version of a token."""
        self.least: dict[GroupKey, int] = {}
        """No engine serves it that is older."""
        self.entered: dict[GroupKey, tuple[int, int]] = {}
        self.again: list[GroupKey] = []
        self.engines = [0, 0]
        self.worst = 0
        self.count = 0

    def pick(self, what: list[GroupKey]) -> GroupKey:
        return what[self.draw.draw(st.integers(0, len(what) - 1))]

    def running(self) -> list[GroupKey]:
        return [one.key for one in self.plan._live.values() if one.arrival is None]

    def event(self) -> None:
        kind = self.draw.draw(st.sampled_from(["start"] * 4 + ["end"] * 3 + ["load"] * 2 + ["lose", "back", "sample"]))
        running, version = self.running(), self.engines[self.draw.draw(st.integers(0, 1))]
        if kind == "start" and self.plan.may_start(version):
            one = self.again.pop(0) if self.again else key(self.count)
            self.count += 1
            self.plan.start(one, version)
            self.oldest[one] = self.least[one] = version
        elif kind == "end" and running:
            self.plan.ready(self.pick(running))
        elif kind == "load":
            self.engines[self.draw.draw(st.integers(0, 1))] = self.plan.batch
        elif kind == "sample" and running:
            one = self.pick(running)
            if version >= self.least[one]:
                self.oldest[one] = min(self.oldest[one], version)
        elif kind == "lose" and running:
            self.lose(self.pick(running), version)
        elif kind == "back":
            self.back(max(0, self.plan.batch - self.draw.draw(st.integers(0, 3))))
        self.settle()

    def lose(self, one: GroupKey, version: int) -> None:
        if self.plan.reissue(one, version) is None:
            self.again.append(one)
            return
        self.least[one] = version
        self.oldest[one] = min(self.oldest[one], version) if self.keeps_tokens else version

    def back(self, batch: int) -> None:
        trained = [(one, due) for one, (number, due) in self.entered.items() if batch <= number < self.plan.batch]
        taken = list(self.plan.taken)
        went = self.plan.go_back(batch, trained)
        self.again += went.ended
        for one in went.due_earlier:
            self.least[one] = batch
        self.engines = [batch, batch]
        for one in [*(one for one, _ in trained), *taken]:
            del self.entered[one]
            self.plan.ready(one)

    def settle(self) -> None:
        for placement in self.plan.take():
            self.entered[placement.key] = placement.batch, placement.deadline
            self.worst = max(self.worst, placement.batch - self.oldest[placement.key])
        self.plan.check()
        if self.plan.is_sealed:
            self.plan.step()
            self.plan.check()


@st.composite
def plans(draw: st.DrawFn) -> Schedule:
    batch = draw(st.integers(1, 4))
    return schedule(
        prompts_per_batch=batch,
        max_staleness=draw(st.integers(0, 3)),
        total_batches=8,
        ahead=draw(st.integers(batch, 4 * batch)),
    )


@settings(max_examples=300, deadline=None)
@given(plans(), st.data())
def test_what_is_trained_is_never_too_old_whatever_is_lost_and_however_often_the_trainer_goes_back(
    plan: Schedule, data: st.DataObject
) -> None:
    plays = Plays(plan, data)
    for _ in range(data.draw(st.integers(0, 80))):
        plays.event()
    assert plays.worst <= plan.max_staleness


def test_tokens_of_an_earlier_issue_under_a_raised_deadline_are_caught_by_the_same_property() -> None:
    @settings(max_examples=5_000, deadline=None, database=None, phases=[Phase.generate])
    @given(plans(), st.data())
    def stays_within(plan: Schedule, data: st.DataObject) -> None:
        plays = Plays(plan, data, keeps_tokens=True)
        for _ in range(data.draw(st.integers(0, 80))):
            plays.event()
        assert plays.worst <= plan.max_staleness

    with pytest.raises(AssertionError):
        stays_within()


def test_a_group_that_is_issued_again_on_a_newer_engine_keeps_its_place_past_a_shut_gate() -> None:
    plan = schedule(ahead=2)
    plan.start(key(0), 0)
    plan.start(key(1), 0)
    plan.ready(key(1))
    plan.take()
    plan.step()
    plan.start(key(2), 0)
    assert not plan.may_start(1)
    assert plan.reissue(key(0), 1) == 3
    assert plan.live == 2
    plan.check()


def test_one_that_only_older_engines_could_serve_starts_through_the_gate() -> None:
    plan = schedule()
    plan.start(key(0), 0)
    plan.ready(key(0))
    plan.take()
    plan.step()
    plan.start(key(1), 1)
    assert plan.reissue(key(1), 0) is None
    assert plan.live == 0
    assert plan.start(key(1), 0) == 2


@pytest.mark.parametrize("version", [0, None])
def test_what_is_ready_is_not_issued_again(version: int | None) -> None:
    plan = schedule()
    plan.start(key(0), 0)
    plan.ready(key(0))
    with pytest.raises(ScheduleError, match="is ready: only one that runs is issued again"):
        plan.reissue(key(0), version)


def test_the_docstrings_return() -> None:
    """max_staleness = 2: a group began on version 7, due at 9, and the trainer goes back to version 5."""
    plan = schedule(total_batches=20)
    for batch in range(7):
        plan.start(key(batch), batch)
        plan.ready(key(batch))
        plan.take()
        plan.step()
    plan.start(key(7), 7)
    went = plan.go_back(5, [(key(5), 7), (key(6), 8)])
    # Of 5, 6 and 7 one has to be in each batch; a third group is not due before 7.
    assert went.due_earlier == {key(7): 7}
    assert plan.batch == 5
    assert plan.ready_groups == 0


def test_what_does_not_fit_any_more_ends_the_earliest_first() -> None:
    """B = 1, max_staleness = 1. Back to 0 there are places for two groups that are due by 1: the trained one, and the
    first that runs."""
    plan = schedule(max_staleness=1, ahead=4)
    plan.start(key(0), 0)
    plan.ready(key(0))
    plan.take()
    plan.step()
    plan.start(key(1), 1)
    plan.start(key(2), 1)
    went = plan.go_back(0, [(key(0), 1)])
    assert went.due_earlier == {key(1): 1}
    assert went.ended == (key(2),)
    assert plan.live == 2


def test_nobody_goes_back_to_what_lies_ahead() -> None:
    with pytest.raises(ScheduleError, match="batch 1 is not behind batch 0"):
        schedule().go_back(1, [])
