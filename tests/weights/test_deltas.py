"""What changed between two versions: lossless, whatever the bits are."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.weights.relay.deltas import MOST_CHANGED, apply, changes


def as_bytes(words: list[int]) -> np.ndarray:
    return np.array(words, dtype=np.uint16).view(np.uint8)


@given(
    st.integers(1, 3000),
    st.dictionaries(st.integers(0, 2999), st.integers(0, 2**16 - 1), max_size=300),
    st.integers(0, 2**32 - 1),
)
def test_what_changed_gives_the_new_bytes(count: int, changed: dict[int, int], seed: int) -> None:
    old = np.random.default_rng(seed).integers(0, 2**16, count, dtype=np.uint16)
    new = old.copy()
    for place, word in changed.items():
        new[place % count] = word
    delta = changes(old.view(np.uint8), new.view(np.uint8))
    share = float((old != new).mean())
    if delta is None:
        assert share > MOST_CHANGED
        return
    assert share <= MOST_CHANGED
    into = np.zeros_like(old)
    apply(delta, old.view(np.uint8), into.view(np.uint8))
    assert into.tobytes() == new.tobytes()


def test_few_changes_are_few_bytes() -> None:
    """1,000 of 100,000 words in their last bit: of each a distance of 99, and 1 and 0 for the two bytes."""
    old = np.zeros(100_000, dtype=np.uint16)
    new = old.copy()
    new[99::100] = 1
    delta = changes(old.view(np.uint8), new.view(np.uint8))
    assert delta is not None
    assert len(delta) < 100, "three runs"
    unpacked = zlib.decompress(delta[8:], -zlib.MAX_WBITS)
    assert unpacked == bytes([99]) * 1000 + bytes([1]) * 1000 + bytes(1000)


def test_a_far_change_has_its_distance_beside() -> None:
    old = as_bytes([0] * 1000)
    new = as_bytes([0] * 255 + [7] + [0] * 744)
    delta = changes(old, new)
    assert delta is not None
    assert zlib.decompress(delta[8:], -zlib.MAX_WBITS) == bytes([255]) + (255).to_bytes(4, "little") + bytes([7, 0])


@pytest.mark.parametrize("cut", [0, 7, 8, 10])
def test_what_is_cut_off_is_refused(cut: int) -> None:
    delta = changes(as_bytes([0] * 100), as_bytes([1, *[0] * 99]))
    assert delta is not None
    with pytest.raises(ValueError, match=r"."):
        apply(delta[:cut], as_bytes([0] * 100), as_bytes([0] * 100))


def test_a_change_beyond_the_bucket_is_refused() -> None:
    delta = changes(as_bytes([0] * 100), as_bytes([*[0] * 99, 1]))
    assert delta is not None
    with pytest.raises(ValueError, match="changes word 99 of 50"):
        apply(delta, as_bytes([0] * 50), as_bytes([0] * 50))
