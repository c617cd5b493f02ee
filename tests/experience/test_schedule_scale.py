"""The schedule decides as the plain one does, which looks at every group at every event, whatever the events are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

import pytest
from schedule_oracle import PlainRecordedSchedule, PlainSchedule

from headrace.experience.recorded_schedule import RecordedSchedule
from headrace.experience.records.recorded import RecordedRollouts
from headrace.experience.sample import GroupKey
from headrace.experience.schedule import OnDeadline, Schedule, ScheduleError
from headrace.store.recorded import Recorded, RecordedGroup
from headrace.store.segment import JournalOffset

QUICK, SLOW, ALL = 2_000, 25_000, 100_000
"""Sequences of events; all of them in `make soak`."""
_VIEWS = (
    "batch",
    "live",
    "ready_groups",
    "running_groups",
    "free_places",
    "taken",
    "is_sealed",
    "is_finished",
    "needs_more",
)


class Pair:
    """Both schedules, given the same events."""

    def __init__(self, make: Callable[[type], Any], plain: type, fast: type) -> None:
        self.plain, self.fast = make(plain), make(fast)
        self.seen: Counter[str] = Counter()
        """How often each kind of event took effect, or was refused."""

    def same(self, event: str, *arguments: Any, **named: Any) -> Any:
        """What both answer; an error's words count as an answer."""
        answers = []
        for schedule in (self.plain, self.fast):
            try:
                answers.append(getattr(schedule, event)(*arguments, **named))
            except ScheduleError as error:
                answers.append(f"ScheduleError: {error}")
        assert answers[0] == answers[1], f"{event}{arguments}{named}: {answers}"
        refused = isinstance(answers[0], str) and answers[0].startswith("ScheduleError")
        self.seen[f"{event} refused" if refused else event] += 1
        if event in ("take", "overdue") and answers[0]:
            self.seen[f"{event} any"] += 1
        if event == "take" and self.plain.on_deadline == "wait" and self.plain.free_places and self.plain.ready_groups:
            self.seen["take held back"] += self.plain.batch < self.plain.total_batches
        self.compare()
        return answers[0]

    def compare(self) -> None:
        for view in _VIEWS:
            assert getattr(self.plain, view) == getattr(self.fast, view), view


def settings(chance: random.Random) -> dict[str, Any]:
    """Small ones mostly, so that every limit is met often; now and then far deadlines, or none that differ."""
    batch = chance.choice((1, 1, 2, 2, 3, 5, 16))
    rule = chance.choice(get_args(OnDeadline))
    return {
        "prompts_per_batch": batch,
        "max_staleness": chance.choice((0, 1, 1, 2, 3, 4, 8, 40, 5_000)),
        "total_batches": chance.choice((0, 1, 2, 3, 6, 10, 10, 10_000)),
        "on_deadline": rule,
        "ahead": batch + chance.choice((0, 0, 1, 3, batch, 5 * batch, 30)),
        "surplus": chance.choice((0, 1, batch, 9)) if rule == "drop" else 0,
    }


def drive(seed: int, seen: Counter[str]) -> None:
    """One sequence of events, most of which can happen."""
    chance = random.Random(seed)
    made = settings(chance)
    pair = Pair(lambda kind: kind(**made), PlainSchedule, Schedule)
    count = 0

    def new() -> GroupKey:
        nonlocal count
        count += 1
        return GroupKey(0, count, 0)

    keys: list[GroupKey] = []
    entered: dict[GroupKey, tuple[int, int]] = {}
    """Of the groups that entered a batch: which, and their deadlines."""

    def take() -> None:
        for placement in pair.same("take"):
            entered[placement.key] = placement.batch, placement.deadline

    if chance.random() < 0.3:
        batch = chance.randrange(4)
        # Mostly deadlines that a schedule could have given.
        first = chance.choice((batch, batch, batch, 0))
        last = batch + made["max_staleness"]
        live = [(new(), chance.randint(first, max(first, last))) for _ in range(chance.choice((1, 2, 4, 12)))]
        pair.same("restore", batch, live)
        keys += [key for key, _ in live]
    obedient = chance.random() < 0.7
    """Whether what is overdue is dropped, as the flow does."""
    lag = chance.choice((0, 0, 1, 3))
    ends = chance.choice((0.3, 0.6, 0.9))
    for _ in range(chance.choice((3, 10, 25, 60))):
        draw = chance.random()
        view = pair.plain
        version = max(0, view.batch - chance.randint(0, lag)) if chance.random() < 0.95 else chance.randrange(9)
        key = chance.choice(keys if keys and chance.random() < 0.98 else (new(), *view.taken[:2]))
        if draw < 1 - ends:
            for _ in range(chance.choice((1, 1, 3, 20))):
                pair.same("shut_by", version, has_bytes=chance.random() < 0.7)
                if not pair.same("may_start", version) and chance.random() < 0.9:
                    break
                key = new() if chance.random() < 0.99 else key
                if isinstance(pair.same("start", key, version), int):
                    keys.append(key)
        elif draw < 0.93:
            running = [group.key for group in view._live.values() if group.arrival is None]
            if running or chance.random() < 0.05:
                pair.same("ready", chance.choice(running) if running and chance.random() < 0.98 else key)
        elif draw < 0.95:
            pair.same("drop", key)
        elif draw < 0.958:
            running = [group.key for group in view._live.values() if group.arrival is None]
            newest = None if chance.random() < 0.1 else max(0, view.batch - chance.randint(0, 1))
            pair.same("reissue", chance.choice(running) if running and chance.random() < 0.95 else key, newest)
        elif draw < 0.97:
            back = max(0, view.batch - chance.randint(0, 3))
            back += chance.random() < 0.02
            trained = [(one, due) for one, (batch, due) in entered.items() if back <= batch < view.batch]
            unjudged = [one for one in view._live if chance.random() < 0.1]
            went = pair.same("go_back", back, trained, unjudged)
            if isinstance(went, str):
                break
            pair.seen["due earlier"] += len(went.due_earlier)
            pair.seen["ended"] += len(went.ended)
            pair.seen["trained again"] += len(trained)
            keys += [one for one, _ in trained]
            entered = {one: there for one, there in entered.items() if there[0] < back}
        elif draw < 0.98:
            pair.same("dataset_spent")
        elif draw < 0.995:
            pair.same("dataset_refilled")
        else:
            pair.same("restore", view.batch, [(new(), view.batch)])
        if chance.random() < 0.9:
            take()
        overdue = pair.same("overdue")
        if obedient:
            for late in overdue:
                pair.same("drop", late)
        if view.is_sealed or chance.random() < 0.02:
            stepped = pair.same("step")
            if obedient and isinstance(stepped, list):
                for late in stepped:
                    pair.same("drop", late)
            take()
        pair.same("check")
        keys = [key for key in keys if key in view._live or chance.random() < 0.1]
    seen.update(pair.seen)


def drive_many(seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            drive(seed, seen)
        except AssertionError as error:
            raise AssertionError(f"sequence {seed}: {error}") from error
    return seen


def test_every_decision_is_the_plain_schedules() -> None:
    seen = drive_many(range(QUICK))
    kinds = (
        "start",
        "ready",
        "drop",
        "take any",
        "take held back",
        "overdue any",
        "step",
        "restore",
        "reissue",
        "go_back",
        "due earlier",
        "trained again",
        "check",
        "dataset_spent",
    )
    refusals = ("start refused", "ready refused", "drop refused", "step refused", "restore refused", "reissue refused")
    assert not [kind for kind in (*kinds, *refusals) if seen[kind] < 20], seen
    assert seen["ended"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(QUICK, SLOW), pytest.param(range(SLOW, ALL), marks=pytest.mark.soak)])
def test_every_decision_is_the_plain_schedules_ten_thousands_of_times(seeds: range) -> None:
    """Two or three minutes all of them."""
    drive_many(seeds)


@pytest.mark.parametrize("seed", range(100))
def test_on_a_record_too(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.randint(1, 4) for _ in range(chance.randint(1, 5))]
    groups = tuple(
        RecordedGroup((0, 10 * batch + place, 0), "p", batch, JournalOffset(1, 0, 0))
        for batch, size in enumerate(sizes)
        for place in range(size)
    )
    record = Recorded("", dict(enumerate(sizes)), groups, lambda offset: b"")
    rollouts = RecordedRollouts(record, "run", vocab_size=9, max_context=4)
    made = {
        "prompts_per_batch": max(sizes),
        "max_staleness": 0,
        "total_batches": chance.randint(1, 12),
        "on_deadline": "wait",
        "ahead": max(sizes) + chance.randint(0, 9),
        "rollouts": rollouts,
    }
    pair = Pair(lambda kind: kind(**made), PlainRecordedSchedule, RecordedSchedule)
    places = iter([GroupKey(epoch, place, 0) for epoch in range(12) for place in range(sum(sizes))])
    running: list[GroupKey] = []
    while not pair.plain.is_finished:
        if pair.same("may_start", 0, has_bytes=chance.random() < 0.8) and chance.random() < 0.7:
            running.append(next(places))
            pair.same("start", running[-1], 0)
        elif running:
            pair.same("ready", running.pop(chance.randrange(len(running))))
        pair.same("take")
        if pair.plain.is_sealed:
            pair.same("step")
            pair.same("take")
