"""Refs: kept until they are freed, and never given twice."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.runtime.refs import InlineRefs, Ref, RefLost


def test_what_is_put_is_got_without_a_copy() -> None:
    refs = InlineRefs()
    tokens = np.arange(3, dtype=np.int32)
    ref = refs.put({"tokens": tokens, "text": "a"})
    assert ref.columns == ("tokens", "text")
    assert refs.get(ref)["tokens"] is tokens
    assert refs.get(ref, ["text"]) == {"text": "a"}
    with pytest.raises(KeyError):
        refs.get(ref, ["mask"])


def test_a_freed_ref_is_lost_and_its_number_is_not_given_again() -> None:
    refs = InlineRefs()
    first = refs.put({"a": 1})
    refs.free(first)
    refs.free(first)
    second = refs.put({"a": 2})
    assert second != first
    assert len(refs) == 1
    with pytest.raises(RefLost, match="the columns a"):
        refs.get(first)


def test_another_keepers_ref_is_not_taken_for_ones_own() -> None:
    refs = InlineRefs("rollout/0")
    refs.put({"a": 1})
    foreign = Ref("rollout/1", 0, ("a",))
    refs.free(foreign)
    with pytest.raises(RefLost):
        refs.get(foreign)
    assert len(refs) == 1
