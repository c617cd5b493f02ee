"""The shares of a batch's optimiser steps: a partition of its samples, drawn from (seed, batch, epoch) alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.training.epochs import Epochs


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 2**32 - 1), st.integers(0, 10**6), st.integers(0, 9))
def test_each_epoch_uses_every_sample_once_in_steps_of_equal_size(
    samples: int, updates: int, seed: int, batch: int, epoch: int
) -> None:
    epochs = Epochs(count=10, updates=updates, seed=seed)
    shares = epochs.shares(samples, batch, epoch)
    assert len(shares) == min(updates, samples)
    assert sorted(np.concatenate(shares).tolist()) == list(range(samples))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert all((np.diff(share) > 0).all() for share in shares)
    again = Epochs(count=10, updates=updates, seed=seed).shares(samples, batch, epoch)
    assert all((one == other).all() for one, other in zip(shares, again, strict=True))


def test_one_step_an_epoch_has_all_samples_in_order() -> None:
    (share,) = Epochs(count=4).shares(7, batch=3, epoch=2)
    assert share.tolist() == list(range(7))


@pytest.mark.parametrize("changed", [{"seed": 1}, {"batch": 1}, {"epoch": 1}])
def test_seed_batch_and_epoch_each_change_the_shares(changed: dict[str, int]) -> None:
    def first(seed: int = 0, batch: int = 0, epoch: int = 0) -> list[int]:
        return Epochs(count=2, updates=2, seed=seed).shares(64, batch, epoch)[0].tolist()

    assert first(**changed) != first()
    assert len(set(first(**changed)) & set(first())) < 28, "of 32; independent draws have 16 in common, give or take 3"


def test_the_draw_is_the_same_on_every_machine() -> None:
    """Philox-4x64 with key (7, 3) and counter (0, 0, 0, 2): its first six words, sorted."""
    shares = Epochs(count=2, updates=2, seed=7).shares(6, batch=3, epoch=1)
    assert [share.tolist() for share in shares] == [[1, 2, 4], [0, 3, 5]]


def test_steps_on_a_batch_are_epochs_times_updates() -> None:
    assert Epochs(count=3, updates=4).steps == 12
