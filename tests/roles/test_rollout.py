"""The rollout role begins what the gate lets through, and gives each group back in one way: finished, handed back,
issued again, or as a fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from role_pool import Pool, Scene, play
from table_rows import header

from headrace.engines.completions import NotServed
from headrace.engines.place import Place
from headrace.engines.protocol import EngineError
from headrace.experience.flow import Admission
from headrace.experience.header import GroupHeader
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import GroupKey, SampleStatus
from headrace.observe.tally import Tally
from headrace.roles.reissue import Losses
from headrace.roles.rollout import RolloutRole
from headrace.runtime.signal import Signal
from headrace.runtime.workers import WorkerLost

FIRST, SECOND = GroupKey(0, 0, 0), GroupKey(0, 1, 0)
LONG_S = 10.0


def admission(key: GroupKey, issue: int = 0) -> Admission:
    return Admission(key, Prompt(str(key.position), "p", {}), 0, 4, issue)


class Flow:
    """Lets `waiting` through; `told` is what became of each group."""

    def __init__(self, *keys: GroupKey) -> None:
        self.waiting = [admission(key) for key in keys]
        self.changed = Signal()
        self.is_finished = False
        self.told: list[Any] = []
        self.late: list[GroupKey] = []
        self.reason_overdue = "surplus"
        self.keeps_place = True
        self.issued = 0
        self.running: set[GroupKey] = set()
        self.placeless: list[GroupKey] = []

    def shut_by(self, number: int) -> str | None:
        return None if self.waiting else "ahead"

    def admit(self, number: int) -> Admission | None:
        if not self.waiting:
            return None
        self.running.add(self.waiting[0].key)
        return self.waiting.pop(0)

    def runs(self, key: GroupKey) -> bool:
        return key in self.running

    def left(self) -> list[GroupKey]:
        return list(self.placeless)

    def has_ended(self, key: GroupKey) -> None:
        self.placeless.remove(key)
        self.told.append(("has ended", key))

    def overdue(self) -> list[GroupKey]:
        return self.late

    def finish(self, finished: Any, receipt: Any) -> None:
        self.told.append(("finished", *finished, receipt))
        self.running.discard(finished[1])

    def hand_back(self, key: GroupKey, reason: str, failure: str | None = None) -> None:
        self.told.append(("back", key, reason, failure))
        self.running.discard(key)
        self.late = [one for one in self.late if one != key]

    def may_keep_place(self, key: GroupKey, number: int) -> bool:
        return self.keeps_place

    def issue_again(self, key: GroupKey, number: int | None) -> Admission | None:
        self.issued += 1
        if number is None:
            self.told.append(("withdrawn", key))
            return None
        return admission(key, self.issued)


class Case:
    """A role whose groups take `LONG_S`, and then end as `ends` says; the rest ends with two samples that are there."""

    def __init__(self, *keys: GroupKey, ends: dict[GroupKey, list[Any]] | None = None, **changes: Any) -> None:
        self.flow, self.pool, self.ends = Flow(*keys), Pool(), ends or {}
        self.changes = changes
        self.played: list[tuple[GroupKey, int, Place | None]] = []
        self.recorded: list[GroupKey] = []
        self.seen: list[GroupKey] = []
        self.cancelled: list[GroupKey] = []
        self.let_go_of: list[GroupKey] = []
        self.counted: list[int] = []
        self.looked = 0
        self.busy: list[int] = []
        self.tally = Tally()
        self.losses = Losses()

    async def run_group(
        self, key: GroupKey, prompt: Prompt, version: Any, deadline: int, issue: int, place: Place | None
    ) -> Any:
        self.played.append((key, issue, place))
        self.busy.append(self.pool.busy)
        try:
            await self.scene.settle(LONG_S)
        except asyncio.CancelledError:
            self.cancelled.append(key)
            raise
        end = self.ends[key].pop(0) if self.ends.get(key) else group(key)
        if isinstance(end, Exception):
            raise end
        return end

    async def write(self, found: Any) -> Any:
        await self.scene.settle(0.5)
        return (("journaled", found.key), "its receipt")

    def let_go(self, key: GroupKey) -> None:
        self.let_go_of.append(key)

    def make(self, scene: Scene) -> RolloutRole:
        self.scene = scene
        me: Any = self

        def changed() -> None:
            self.looked += 1

        scene.activity.listen(changed)

        async def record(found: Any) -> None:
            self.recorded.append(found.key)

        failures: Any = SimpleNamespace(look_at=lambda found: self.seen.append(found.key))
        return RolloutRole(
            scene.context,
            me.pool,
            me,
            me,
            self.tally,
            failures,
            min_samples=2,
            counted=lambda: self.counted.append(self.tally.samples),
            record=record,
            losses=self.losses,
            **self.changes,
        )

    def play(self, body: Callable[[Scene, asyncio.Task[Any]], Any]) -> None:
        play(lambda: self.flow, self.make, body)


def group(key: GroupKey, *statuses: SampleStatus) -> GroupHeader:
    each = statuses or (SampleStatus.COMPLETED, SampleStatus.COMPLETED)
    words = {SampleStatus.FAILED: "reward_timeout: too long"}
    samples = tuple(
        header(key, episode=place, status=status, failure=words.get(status)) for place, status in enumerate(each)
    )
    return GroupHeader(key, str(key.position), 0, 4, samples)


def finished(key: GroupKey) -> tuple[Any, ...]:
    return "finished", "journaled", key, "its receipt"


def test_groups_are_played_counted_recorded_journaled_and_finished() -> None:
    case = Case(FIRST, SECOND)

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle()
        assert [key for key, *_ in case.played] == [FIRST, SECOND]
        assert case.pool.busy == 2, "their tokens are the engine's load"
        assert case.busy == [1, 2]
        assert case.pool.loads[:2] == [0, 1], "each is, before the next one has a place"
        assert case.looked == 2
        await scene.settle(2 * LONG_S)
        assert case.pool.busy == 0
        assert {*case.flow.told} == {finished(FIRST), finished(SECOND)}
        assert {*case.recorded} == {*case.seen} == {FIRST, SECOND}
        assert {*case.let_go_of} == {FIRST, SECOND}, "of what was not written"
        assert case.counted == [2, 4], "before each counts as finished"
        case.flow.is_finished = True
        case.flow.changed.notify()
        await scene.settle()
        assert running.done()

    case.play(body)


def test_what_the_flow_lets_through_later_is_begun_then() -> None:
    case = Case(FIRST)
    noted: list[int] = []

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(2 * LONG_S)
        case.flow.waiting.append(admission(SECOND))
        case.flow.changed.listen(lambda: noted.append(1))
        case.flow.changed.notify()
        await scene.settle(2 * LONG_S)
        assert case.flow.told == [finished(FIRST), finished(SECOND)]
        assert len(noted) == 2, "that a group's task has ended is told, too"

    case.play(body)


def test_a_group_with_too_few_samples_is_handed_back_with_what_most_failed_of() -> None:
    failed = group(FIRST, SampleStatus.COMPLETED, SampleStatus.FAILED, SampleStatus.FAILED)
    case = Case(FIRST, ends={FIRST: [failed]})

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(2 * LONG_S)
        assert case.flow.told == [("back", FIRST, "failed: reward_timeout", "reward_timeout: too long")]
        assert case.seen == [FIRST], "whoever watches failures has seen it"

    case.play(body)


def test_samples_of_one_episode_do_not_make_a_group() -> None:
    """Two histories of the one episode that is left: nothing to compare it with, where `min_samples` is 2."""
    alone = GroupHeader(FIRST, "0", 0, 4, tuple(header(FIRST, episode=0, index=index) for index in range(2)))
    failed = replace(
        alone, samples=(*alone.samples, *group(FIRST, SampleStatus.COMPLETED, SampleStatus.FAILED).samples[1:])
    )
    case = Case(FIRST, ends={FIRST: [failed]})

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(2 * LONG_S)
        assert case.flow.told == [("back", FIRST, "failed: reward_timeout", "reward_timeout: too long")]

    case.play(body)


def test_what_is_overdue_is_ended_and_handed_back_once() -> None:
    few = group(SECOND, SampleStatus.FAILED)
    case = Case(FIRST, SECOND, ends={SECOND: [few]})

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle()
        case.flow.late = [FIRST]
        case.flow.changed.notify()
        await scene.settle()
        assert case.cancelled == [FIRST]
        assert case.flow.told == [("back", FIRST, "surplus", None)]
        case.flow.late = [SECOND]  # it ends by itself before anybody looks
        await scene.settle(2 * LONG_S)
        assert case.flow.told[1:] == [("back", SECOND, "surplus", None)]

    case.play(body)


def test_groups_that_have_no_place_after_the_run_went_back_are_ended_and_never_handed_back() -> None:
    few = group(SECOND, SampleStatus.FAILED)
    case = Case(FIRST, SECOND, ends={SECOND: [few]})

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle()
        case.losses.lost(FIRST)
        case.losses.lost(FIRST)
        case.flow.placeless = [FIRST]
        case.flow.running = set()
        case.flow.late = [SECOND]
        case.flow.changed.notify()
        await scene.settle()
        assert set(case.cancelled) == {FIRST, SECOND}
        assert case.flow.told == [("has ended", FIRST)]
        assert not case.losses.is_alone(FIRST), "it begins anew"

    case.play(body)


def test_what_ends_by_itself_after_the_run_went_back_is_let_go() -> None:
    case = Case(FIRST, SECOND, ends={FIRST: [group(FIRST, SampleStatus.FAILED)], SECOND: [NotServed("no")]})

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle()
        case.flow.running = set()
        await scene.settle(2 * LONG_S)
        assert case.flow.told == []

    case.play(body)


@pytest.mark.parametrize("lost", [NotServed("none is new enough"), WorkerLost(0, "it ended")])
def test_what_nobody_could_serve_is_issued_again_in_its_place(lost: Exception) -> None:
    case = Case(FIRST, ends={FIRST: [lost]})

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(3 * LONG_S)
        assert [(key, issue) for key, issue, _ in case.played] == [(FIRST, 0), (FIRST, 1)]
        assert case.flow.told == [finished(FIRST)]
        assert scene.kinds == ["reissued"]
        assert case.seen == [FIRST], "the loss is nobody's failure"

    case.play(body)


def test_without_a_place_it_starts_through_the_gate_and_if_it_is_overdue_not_at_all() -> None:
    case = Case(FIRST, SECOND, ends={FIRST: [NotServed("no")], SECOND: [NotServed("no")]})

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        case.flow.keeps_place = False
        await scene.settle()
        case.flow.late = [SECOND]
        await scene.settle(3 * LONG_S)
        assert ("withdrawn", FIRST) in case.flow.told
        assert ("withdrawn", SECOND) not in case.flow.told
        assert ("back", SECOND, "surplus", None) in case.flow.told
        assert len(case.played) == 2

    case.play(body)


def test_the_third_loss_of_a_worker_hands_it_back_and_a_group_that_ended_begins_to_count_anew() -> None:
    lost = [WorkerLost(0, f"loss {number}") for number in range(3)]
    case = Case(FIRST, ends={FIRST: list(lost)})

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(5 * LONG_S)
        assert len(case.played) == 3
        ((kind, key, reason, words),) = case.flow.told
        assert (kind, key, reason) == ("back", FIRST, "failed: worker_lost")
        assert "loss 2" in words
        assert case.losses.is_alone(FIRST), "what comes of the row next"
        case.ends[FIRST] = [WorkerLost(0, "again"), group(FIRST)]
        case.flow.waiting.append(admission(FIRST))
        case.flow.changed.notify()
        await scene.settle(5 * LONG_S)
        assert case.flow.told[1:] == [finished(FIRST)]
        assert not case.losses.lost(FIRST)
        assert not case.losses.lost(FIRST), "of the one that finished nothing counts any more"

    case.play(body)


def test_a_fault_of_a_group_ends_it() -> None:
    faulty = Case(FIRST, SECOND, ends={FIRST: [KeyError("a fault of ours")]})

    async def raises(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(2 * LONG_S)
        with pytest.raises(KeyError):
            await running

    faulty.play(raises)


@pytest.mark.parametrize("who", ["a judge", "the policy"])
def test_while_a_judge_is_dead_no_group_is_handed_back_for_what_it_could_not_score(who: str) -> None:
    """Nor for what could not be generated: whoever watches over the engines ends the run."""
    judge = Pool()
    case = Case(FIRST, ends={FIRST: [group(FIRST, SampleStatus.FAILED)]}, judges=[judge])

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle()
        (judge if who == "a judge" else case.pool).failure = EngineError("no memory")
        await scene.settle(2 * LONG_S)
        assert case.recorded == [FIRST]
        assert case.flow.told == [], "it is generated again when the run is resumed"
        assert not running.done()

    case.play(body)


def test_with_no_engine_open_only_the_flow_is_asked() -> None:
    """With the gate shut the flow still says whether there is any use in going on."""
    case = Case()
    asked: list[int] = []

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        def admit(number: int) -> None:
            asked.append(number)

        case.flow.admit = admit  # type: ignore[method-assign, assignment]
        case.flow.changed.notify()
        await scene.settle()
        assert asked
        assert case.played == []

    case.play(body)
    assert replace(admission(FIRST), issue=1) == admission(FIRST, 1)
