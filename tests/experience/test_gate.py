"""When the gate opens: from why it is shut, with numbers worked out by hand."""

from __future__ import annotations

import pytest

from headrace.experience.gate import Awaited, GateState, Opening, Pace, awaited, opening
from headrace.experience.sample import GroupKey
from headrace.experience.schedule import Schedule


def pace(*spans: float, since: float | None = None) -> Pace:
    """Of what took so long; `since`: the next one goes on."""
    made, now = Pace(), 0.0
    for span in spans:
        made.begin(now)
        made.end(now := now + span)
    if since is not None:
        made.begin(since)
    return made


@pytest.mark.parametrize(
    ("state", "waits"),
    [
        (GateState(None), ()),
        (GateState("staleness"), ("version",)),
        (GateState("bytes"), ("version",)),
        (GateState("prompts"), ("version",)),
        (GateState("ahead"), ("group",)),  # the batch has places: one that ends makes room
        (GateState("ahead", sealed=True), ("version",)),  # nobody enters it any more
        (GateState(None, behind=True), ("swap",)),
        (GateState(None, behind=True, evaluated=True), ("evaluation",)),  # which holds the engine
        (GateState("staleness", evaluated=True), ("evaluation", "version")),
        (GateState(None, evaluated=True), ("evaluation",)),  # the first one, before all groups
        (GateState(None, asleep=True, behind=True), ("version",)),  # the trainer's turn
        (GateState("ahead", asleep=True), ("version",)),
        (GateState(None, serves=False), ("engine",)),
        (GateState("staleness", serves=False), ("version",)),
    ],
)
def test_what_has_to_come_follows_from_why_it_is_shut(state: GateState, waits: tuple[Awaited, ...]) -> None:
    assert awaited(state) == waits


@pytest.mark.parametrize(
    ("state", "now", "seconds"),
    [
        (GateState("staleness"), 103.0, 7.0),  # a batch takes 10 s, and this one began at 100
        (GateState("staleness"), 109.5, 0.5),
        (GateState("staleness"), 130.0, 0.0),  # it is late
        (GateState(None, behind=True, evaluated=True), 103.0, 40.0),  # of 45, begun at 98
        (GateState("staleness", evaluated=True), 103.0, 40.0),  # the later of both
        (GateState("staleness", evaluated=True), 142.0, 1.0),
        (GateState(None, behind=True), 103.0, 0.0),
        (GateState(None), 103.0, 0.0),
        (GateState("ahead"), 103.0, 5.0),  # groups take 8 s, and those at hand began at 90, 100 and 101
        (GateState("ahead"), 108.5, 0.5),
        (GateState("ahead"), 120.0, 0.0),
        (GateState("ahead", evaluated=True), 103.0, 40.0),
        (GateState(None, serves=False), 103.0, None),
    ],
)
def test_seconds_are_those_since_the_last_less_the_usual_ones(
    state: GateState, now: float, seconds: float | None
) -> None:
    versions, evaluations, groups = pace(9.0, 10.0, 30.0, since=100.0), pace(45.0, since=98.0), pace(8.0)
    for number, began in enumerate((90.0, 100.0, 101.0)):
        groups.begin(began, number)
    assert opening(state, versions, evaluations, groups, now).seconds == seconds


def test_nothing_is_foretold_before_anything_is_usual() -> None:
    first = Pace()
    first.begin(0.0)
    assert first.usual_s is None
    assert opening(GateState("staleness"), first, Pace(), Pace(), 5.0) == Opening(("version",), None)
    # Of both that are awaited one is not known.
    known = pace(10.0, since=0.0)
    assert opening(GateState("staleness", evaluated=True), known, Pace(), Pace(), 5.0).seconds is None


def test_the_usual_time_is_the_median_of_the_last_eight() -> None:
    assert pace(*[100.0] * 5, *[1.0] * 4, *[3.0] * 4).usual_s == 2.0
    several = Pace()
    several.begin(10.0)
    several.end(40.0, count=3)  # three versions, of which two were passed over
    assert several.usual_s == 10.0


def test_it_says_what_it_waits_for() -> None:
    assert Opening(("evaluation", "version"), 1.0).describe() == (
        "the end of an evaluation and the next version of the weights"
    )
    assert Opening((), 0.0).describe() == ""


def test_the_schedules_bounds_open_with_what_is_awaited() -> None:
    """B = 2, at most one batch stale, four live groups at most."""
    schedule = Schedule(2, 1, 10, "wait", 4)
    keys = [GroupKey(0, position, 0) for position in range(9)]

    def shut() -> tuple[Awaited, ...]:
        return awaited(GateState(schedule.shut_by(schedule.batch), sealed=schedule.is_sealed))

    for key in keys[:4]:
        assert shut() == ()
        schedule.start(key, schedule.batch)
    assert schedule.shut_by(0) == "staleness"  # batches 0 and 1 are full
    assert shut() == ("version",)
    for key in keys[:2]:
        schedule.ready(key)
    schedule.take()
    assert schedule.is_sealed
    assert shut() == ("version",)
    schedule.step()
    assert shut() == ()

    longer = Schedule(2, 5, 10, "wait", 4)
    for key in keys[:4]:
        longer.start(key, 0)
    assert longer.shut_by(0) == "ahead"
    assert awaited(GateState(longer.shut_by(0), sealed=longer.is_sealed)) == ("group",)
    longer.ready(keys[0])
    longer.take()
    assert longer.shut_by(0) is None, "one that has entered the batch is live no more"
