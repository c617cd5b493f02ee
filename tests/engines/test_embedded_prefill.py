"""Chunks of prompts as one pass."""

from __future__ import annotations

import numpy as np
import torch
from engines_helpers import request
from hypothesis import given
from hypothesis import strategies as st

from headrace.engines.embedded.prefill import prefill_pass
from headrace.engines.embedded.request_state import Sequence
from headrace.engines.embedded.scheduler import Chunk

CPU = torch.device("cpu")


def test_by_hand() -> None:
    """5 and 7 tokens are one batch of 2 x 7, with 2 places of padding; 2 tokens are another."""
    chunks = [chunk(0, start=3, stop=10), chunk(1, start=0, stop=2), chunk(2, start=0, stop=5)]
    short, long = prefill_pass(chunks, CPU)
    assert short.tokens.tolist() == [[100, 101]]
    assert (short.own, short.source, short.count, short.length) == (None, None, 2, 2)
    assert long.slots.tolist() == [2, 0]
    assert long.tokens.tolist() == [[200, 201, 202, 203, 204, 204, 204], [3, 4, 5, 6, 7, 8, 9]]
    assert long.positions.tolist() == [[0, 1, 2, 3, 4, 4, 4], [3, 4, 5, 6, 7, 8, 9]]
    assert (long.count, long.length) == (12, 10)
    assert (short.from_start, long.from_start) == (True, False)
    assert long.unpadded(long.tokens.flatten()).tolist() == [200, 201, 202, 203, 204, 3, 4, 5, 6, 7, 8, 9]


def chunk(number: int, start: int, stop: int) -> Chunk:
    """Of a sequence whose token at place i is 100 x `number` + i."""
    sequence = Sequence(request(str(number), np.arange(100 * number, 100 * number + stop + 1)), 4096)
    return Chunk(sequence, number, start, stop)


def test_a_batch_looks_at_so_many_keys_at_most() -> None:
    """Sequences of 10, 12 and 40 tokens, 4 of each new: together 3 x 40 keys. One that is longer than all that is
    alone."""
    chunks = [chunk(0, start=8, stop=12), chunk(1, start=36, stop=40), chunk(2, start=6, stop=10)]

    def slots(most_places: int | None) -> list[list[int]]:
        return [batch.slots.tolist() for batch in prefill_pass(chunks, CPU, most_places)]

    assert slots(None) == slots(120) == [[0, 1, 2]]
    assert slots(119) == slots(24) == [[2, 0], [1]]
    assert slots(23) == slots(1) == [[2], [0], [1]]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 40)), min_size=1, max_size=9), st.none() | st.integers(1, 200)
)
def test_every_token_is_computed_once_and_padding_repeats_the_last_one(
    places: list[tuple[int, int]], most_places: int | None
) -> None:
    chunks = [chunk(number, start, start + size) for number, (start, size) in enumerate(places)]
    computed = []
    for batch in prefill_pass(chunks, CPU, most_places):
        assert most_places is None or len(batch.slots) == 1 or len(batch.slots) * batch.length <= most_places
        assert 2 * batch.count > batch.tokens.numel() or batch.count == batch.tokens.numel()
        flat = batch.unpadded(batch.tokens.flatten())
        assert torch.equal(batch.padded(flat), batch.tokens.flatten())
        assert batch.from_start == (int(batch.positions[:, 0].max()) == 0)
        assert not batch.from_start or batch.length == batch.tokens.shape[1]
        assert batch.length == int(batch.positions.max()) + 1
        slots = batch.slots[:, None].expand(batch.tokens.shape)
        assert torch.equal(batch.tokens, 100 * slots + batch.positions)
        computed += flat.tolist()
    assert sorted(computed) == sorted(
        100 * number + place for number, (start, size) in enumerate(places) for place in range(start, start + size)
    )
