"""Rare collections: what was there is left alone, what is made is collected, and all is as it was afterwards."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from headrace.runtime.collection import rare_collections


class Node:
    itself: object = None


def cycle() -> weakref.ref[Node]:
    node = Node()
    node.itself = node
    return weakref.ref(node)


@pytest.fixture(autouse=True)
def nothing_frozen() -> Iterator[None]:
    """As in a process whose run this is; the tests' own has most of it frozen."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_what_was_there_is_not_looked_at_and_new_cycles_are_freed() -> None:
    threshold = gc.get_threshold()
    before = cycle()
    with rare_collections():
        assert before() is None  # what nobody needed any more went first
        assert gc.get_freeze_count() > 0
        made = cycle()
        assert made() is not None
        gc.collect()
        assert made() is None
        assert gc.get_threshold()[0] > threshold[0]
    assert (gc.get_threshold(), gc.get_freeze_count()) == (threshold, 0)


def test_what_others_froze_stays_as_they_left_it() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with rare_collections():
        assert 0 < gc.get_freeze_count() <= frozen
        made = cycle()
        gc.collect()
        assert made() is None
    assert 0 < gc.get_freeze_count() <= frozen


def test_an_error_leaves_nothing_changed() -> None:
    threshold = gc.get_threshold()
    with pytest.raises(ValueError, match="within"), rare_collections():
        raise ValueError("within")
    assert (gc.get_threshold(), gc.get_freeze_count()) == (threshold, 0)
