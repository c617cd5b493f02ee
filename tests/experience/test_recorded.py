"""Recorded rollouts: which are used, in what order, how old they count; no order of arrival changes a batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import ConfigError
from headrace.experience.recorded_schedule import RecordedSchedule
from headrace.experience.records.codec import encode_group
from headrace.experience.records.recorded import RecordedRollouts, RecordedSource
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.store.recorded import Recorded, RecordedGroup
from headrace.store.segment import JournalOffset


def nothing(offset: JournalOffset) -> bytes:
    raise AssertionError("read")


def opened(
    sizes: dict[int, int],
    there: dict[int, int] | None = None,
    read: Callable[[JournalOffset], bytes] = nothing,
    first: int | None = None,
) -> RecordedRollouts:
    """Of batches of these sizes, of which so many groups are `there`; all unless given."""
    places = [(batch, place) for batch, size in (there or sizes).items() for place in range(size)]
    groups = tuple(
        RecordedGroup((0, 10 * batch + place, 0), f"p{batch}", batch, JournalOffset(1, 0, 0)) for batch, place in places
    )
    return RecordedRollouts(Recorded("", sizes, groups, read), "run", vocab_size=9, max_context=4, first=first)


def test_only_whole_batches_are_used() -> None:
    rollouts = opened({3: 2, 4: 2, 5: 1, 6: 2}, {3: 1, 4: 2, 5: 1, 6: 2})
    assert (len(rollouts), rollouts.batches, rollouts.sizes) == (5, 3, (2, 1, 2))
    assert (rollouts.trained, rollouts.left_out) == (7, 1)
    assert [rollouts.batch_of(GroupKey(0, place, 0)) for place in range(5)] == [0, 0, 1, 2, 2]
    assert [rollouts.batch_of(GroupKey(2, place, 0)) for place in range(5)] == [6, 6, 7, 8, 8]
    assert [rollouts.before(batch) for batch in range(8)] == [0, 2, 3, 5, 7, 8, 10, 12]
    assert opened({0: 2, 1: 1}, first=1).digest == opened({0: 2}).digest != opened({1: 2}).digest
    with pytest.raises(ConfigError, match=r"the journal of run holds no whole batch of the 2 that it committed"):
        opened({0: 2, 1: 2}, {1: 1})


def test_a_token_keeps_the_age_that_it_was_recorded_with() -> None:
    """Batch 4 becomes batch 0, and 3 in the second pass: versions 2 and 4 were 2 and 0 batches old, and are."""
    key = GroupKey(7, 8, 1)
    sample = Sample(
        group=key,
        episode=0,
        index=0,
        tokens=np.array([5, 6, 7], np.int32),
        loss_mask=np.array([False, True, True]),
        logprobs=np.array([0, -1, -2], np.float32),
        versions=np.array([-1, 2, 4], np.int32),
        branches=np.array([-1, 0, 0], np.int32),
        status=SampleStatus.COMPLETED,
        reward=0.5,
    )
    data = encode_group(Group(key, "p4", 2, 5, (sample,)))
    rollouts = opened({4: 1, 6: 1, 7: 1}, read=lambda offset: data)
    for epoch, versions in ((0, [-1, -2, 0]), (1, [-1, 1, 3])):
        group = rollouts.group(GroupKey(epoch, 0, 0))
        assert group.key == group.samples[0].group == (epoch, 0, 0)
        assert (group.deadline, group.prompt_id) == (3 * epoch, "p4")
        assert group.samples[0].versions.tolist() == versions
        assert group.samples[0].logprobs.tolist() == [0, -1, -2]
        assert group.samples[0].reward == 0.5


def test_the_source_goes_on_where_it_was() -> None:
    def keys(source: RecordedSource) -> list[tuple[int, int, int]]:
        return [issued.key for issued in iter(source.next, None)]

    rollouts = opened({0: 2, 1: 1})
    every = keys(RecordedSource(rollouts, epochs=2))
    assert every == [(0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 0, 0), (1, 1, 0), (1, 2, 0)]
    for done in range(1, 6):
        epoch, position, _ = every[done - 1]
        assert keys(RecordedSource(rollouts, epochs=2, frontier=(epoch, position + 1))) == every[done:]


@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    batches=st.integers(1, 9),
    slack=st.integers(0, 3),
    random=st.randoms(use_true_random=False),
)
def test_batches_are_as_recorded_whatever_comes_first(sizes: list[int], batches: int, slack: int, random) -> None:
    rollouts = opened(dict(enumerate(sizes)))
    schedule = RecordedSchedule(
        prompts_per_batch=max(sizes),
        max_staleness=0,
        total_batches=batches,
        on_deadline="wait",
        ahead=max(sizes) + slack,
        rollouts=rollouts,
    )
    source = RecordedSource(rollouts, epochs=None)
    running: list[GroupKey] = []
    while not schedule.is_finished:
        if schedule.may_start(0) and (not running or random.random() < 0.6):
            issued = source.next()
            assert issued is not None
            schedule.start(issued.key, 0)
            running.append(issued.key)
        elif running:
            schedule.ready(running.pop(random.randrange(len(running))))
            schedule.take()
        if schedule.is_sealed:
            passes, place = divmod(schedule.batch, len(sizes))
            first = sum(sizes[:place])
            assert sorted(schedule.taken) == [(passes, first + i, 0) for i in range(sizes[place])]
            assert schedule.step() == []
            schedule.take()
        assert schedule.live <= max(sizes) + slack
    assert (schedule.live, running) == (0, [])
