"""Which way of computing products is taken on a machine: measured once, and the same for all who ask."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headrace.models import product_choice
from headrace.models.product_choice import (
    NEITHER,
    ProductChoice,
    choice_for,
    dense_is_faster,
    kept_choice,
    measured,
)

FAST, SLOW = ProductChoice(2.2, 2.5), ProductChoice(0.9, 1.05)


def never(dtype: torch.dtype) -> ProductChoice:
    raise AssertionError("it was measured again")


def test_a_way_is_taken_where_it_is_faster_by_a_tenth() -> None:
    assert (FAST.dense, FAST.packed) == (True, True)
    assert (SLOW.dense, SLOW.packed) == (False, False)
    assert (ProductChoice(1.1, 1.09).dense, ProductChoice(1.1, 1.09).packed) == (True, False)


def test_who_comes_first_decides_for_all_of_the_dtype(tmp_path: Path) -> None:
    assert kept_choice(tmp_path / "cache", torch.float32, lambda dtype: FAST) == FAST
    assert kept_choice(tmp_path / "cache", torch.float32, never) == FAST
    assert kept_choice(tmp_path / "cache", torch.bfloat16, lambda dtype: SLOW) == SLOW
    assert len([*(tmp_path / "cache").iterdir()]) == 2


def test_who_measures_at_the_same_time_takes_what_the_first_one_kept(tmp_path: Path) -> None:
    def meanwhile(dtype: torch.dtype) -> ProductChoice:
        assert kept_choice(tmp_path, dtype, lambda dtype: FAST) == FAST
        return SLOW

    assert kept_choice(tmp_path, torch.float32, meanwhile) == FAST


@pytest.mark.parametrize("text", ["", "{", "{}", '{"dense_gain": null, "packed_gain": 1}', "[1]"])
def test_what_cannot_be_read_is_measured_again(tmp_path: Path, text: str) -> None:
    kept_choice(tmp_path, torch.float32, lambda dtype: SLOW)
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    assert kept_choice(tmp_path, torch.float32, lambda dtype: FAST) == FAST


def test_with_nowhere_to_keep_it_nothing_is_measured_that_others_would_find_otherwise(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert kept_choice(tmp_path / "file", torch.float32, lambda dtype: FAST) == NEITHER
    assert kept_choice(None, torch.float32, never) == NEITHER


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_measuring_leaves_threads_and_draws_alone() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    found = measured(torch.float32)
    assert found.dense_gain > 0
    assert found.packed_gain > 0
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_nothing_is_measured_for_a_device_and_bfloat16_is_no_slower_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_choice, "_on_cpu", never)
    assert choice_for(torch.device("cuda"), torch.float32) == NEITHER
    assert not dense_is_faster(torch.device("cpu"), torch.bfloat16)
    monkeypatch.setattr(product_choice, "HAS_ONEDNN", True)
    monkeypatch.setattr(product_choice, "_on_cpu", lambda dtype: FAST)
    assert dense_is_faster(torch.device("cpu"), torch.float32)
