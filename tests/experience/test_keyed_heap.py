"""The first of keys whose priorities change, told as by looking at all."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.experience.keyed_heap import KeyedHeap


@given(st.lists(st.tuples(st.integers(0, 6), st.one_of(st.none(), st.integers(0, 9))), max_size=200))
def test_the_first_is_the_least(changes: list[tuple[int, int | None]]) -> None:
    heap, plain = KeyedHeap[int](), dict[int, int]()
    for key, priority in changes:
        if priority is None:
            heap.discard(key)
            plain.pop(key, None)
        else:
            heap.set(key, priority)
            plain[key] = priority
        least = min(((priority, key) for key, priority in plain.items()), default=None)
        assert heap.first() == least
        assert len(heap) == len(plain)
        assert (key in heap) == (key in plain)


def test_what_has_left_takes_no_room_for_long() -> None:
    heap = KeyedHeap[int]()
    heap.set(-1, -1)
    for key in range(1_000):
        heap.set(key, key)
        heap.discard(key)
        heap.set(-1, -1)
    assert len(heap._heap) < 30
