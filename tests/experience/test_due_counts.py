"""Deadlines that are full, told as by counting them all."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.experience.due_counts import DueBy, DueCounts

DEADLINES = st.one_of(st.integers(0, 12), st.integers(-2, 3_000))


def first_full(deadlines: list[int], per_batch: int, batch: int, places: int) -> DueBy | None:
    due = sorted(max(deadline, batch, 0) for deadline in deadlines)
    for deadline in dict.fromkeys(due):
        groups = sum(one <= deadline for one in due)
        if groups > (deadline - batch) * per_batch + places:
            return DueBy(deadline, groups)
    return None


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.booleans(), DEADLINES), max_size=60),
    st.lists(st.tuples(DEADLINES.map(abs), st.integers(-1, 6)), min_size=1, max_size=8),
)
def test_the_first_full_deadline(
    per_batch: int, changes: list[tuple[bool, int]], questions: list[tuple[int, int]]
) -> None:
    counts, deadlines = DueCounts(per_batch), list[int]()
    for leaves, deadline in changes:
        if leaves and deadlines:
            counts.remove(deadlines.pop(deadline % len(deadlines)))
        else:
            counts.add(deadline)
            deadlines.append(deadline)
        for batch, places in questions:
            assert counts.first_full(batch, places) == first_full(deadlines, per_batch, batch, places)


def test_by_hand() -> None:
    """Batches of 2: deadline 5 is full for batch 3 with one place when 1 + 2 * 2 = 5 are due, and passed by a sixth."""
    counts = DueCounts(2)
    for deadline in (4, 5, 5, 5, 5):
        counts.add(deadline)
    assert counts.first_full(3, 1) is None
    counts.add(9)
    assert counts.first_full(3, 1) is None, "there is room for eight more until 9"
    counts.add(4)
    assert counts.first_full(3, 1) == DueBy(5, 6)
    assert counts.first_full(5, 5) == DueBy(5, 6), "what is due earlier is due at once"
    assert counts.first_full(7, 5) == DueBy(7, 6)
    counts.remove(5)
    assert counts.first_full(3, 1) is None


def test_far_deadlines_take_no_more_room_than_their_number() -> None:
    counts = DueCounts(1)
    for deadline in (0, 1 << 40):
        counts.add(deadline)
    assert counts.first_full(0, 0) == DueBy(0, 1)
    counts.remove(0)
    assert counts.first_full(0, 0) is None
    counts.remove(1 << 40)
    assert not any(counts._levels)
