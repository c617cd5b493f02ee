"""Kept sets: what goes in comes out, in few bytes; what is no kept set is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.algorithms.kept_sets import KeptSetError, KeptSets, joined, most_bytes


@st.composite
def drawn_sets(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    vocab = draw(st.sampled_from([3, 8, 40, 2**16, 2**16 + 1, 150_000]))
    ids = st.lists(st.integers(0, vocab - 1), max_size=12, unique=True)
    return vocab, draw(st.lists(ids, max_size=6))


def _of(vocab: int, sets: list[list[int]]) -> KeptSets:
    flat = np.array([i for one in sets for i in one], np.int64)
    return KeptSets.of(flat, np.array([len(one) for one in sets], np.int64), vocab)


def _sets(kept: KeptSets) -> list[set[int]]:
    ids, counts = kept.ids()
    return [set(part.tolist()) for part in np.split(ids, np.cumsum(counts)[:-1])] if len(kept) else []


@given(drawn_sets())
def test_the_ids_come_back(drawn: tuple[int, list[list[int]]]) -> None:
    vocab, sets = drawn
    kept = _of(vocab, sets)
    assert _sets(kept) == [set(one) for one in sets]
    assert kept.counts.tolist() == [len(one) for one in sets]
    again = KeptSets.checked(vocab, kept.counts, kept.data)
    assert _sets(again) == _sets(kept)


@given(drawn_sets(), st.data())
def test_a_part_is_that_of_its_tokens_and_parts_join_to_the_whole(
    drawn: tuple[int, list[list[int]]], data: st.DataObject
) -> None:
    vocab, sets = drawn
    kept = _of(vocab, sets)
    cut = data.draw(st.integers(0, len(sets)))
    first, second = kept[:cut], kept[cut:]
    assert _sets(first) + _sets(second) == [set(one) for one in sets]
    whole = joined([first, None, second], [len(first), 2, len(second)])
    assert whole is not None
    assert _sets(whole) == [*_sets(first), set(), set(), *_sets(second)]


@given(drawn_sets(), st.data())
def test_containing_is_being_in_the_set_or_having_none(drawn: tuple[int, list[list[int]]], data: st.DataObject) -> None:
    vocab, sets = drawn
    tokens = [
        data.draw(st.sampled_from(one) if one and data.draw(st.booleans()) else st.integers(0, vocab - 1))
        for one in sets
    ]
    expected = [not one or token in one for token, one in zip(tokens, sets, strict=True)]
    assert _of(vocab, sets).contain(np.array(tokens, np.int32)).tolist() == expected


def test_each_set_takes_the_smaller_of_ids_and_bitmap() -> None:
    """40 tokens: a bitmap is 5 bytes, an id 2: two ids are 4 bytes, three would be 6. Above 2^16 an id is 4 bytes."""
    assert _of(40, [[1], [1, 2], [1, 2, 3], list(range(40))]).sizes.tolist() == [2, 4, 5, 5]
    assert _of(70_000, [[1], [1, 69_999]]).sizes.tolist() == [4, 8]
    assert most_bytes(40, 0) == 4 + 5
    assert most_bytes(32_000, 512) == 4 + 1024
    assert most_bytes(512, 512) == 4 + 64


def test_a_bitmap_has_bit_i_mod_8_of_byte_i_div_8() -> None:
    assert _of(16, [[0, 1, 9]]).data.tolist() == [0b11, 0b10]


@pytest.mark.parametrize(
    ("vocab", "counts", "data"),
    [
        (40, [1], [5]),  # half an id
        (40, [1], [40, 0]),  # outside the vocabulary
        (40, [2], [3, 0, 3, 0]),  # twice the same
        (12, [9], [0xFF, 0x0F]),  # a bitmap of 12
        (12, [9], [0xFF, 0x10]),  # outside the vocabulary
        (40, [41], [255] * 5),
        (40, [-1], []),
        (0, [], []),
    ],
)
def test_what_is_no_kept_set_is_refused(vocab: int, counts: list[int], data: list[int]) -> None:
    with pytest.raises(KeptSetError):
        KeptSets.checked(vocab, np.array(counts, np.int32), np.array(data, np.uint8))


def test_sets_of_two_vocabularies_do_not_join() -> None:
    with pytest.raises(KeptSetError, match="vocabularies of \\[40, 41\\]"):
        joined([_of(40, [[1]]), _of(41, [[1]])], [1, 1])
