"""Where a rank's piece of a tensor lies in the whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from headrace.models.parallel.stages import Outline
from headrace.training.layouts.sharded_pieces import chunk_of, pieces_of
from headrace.training.pieces import Piece


@contextmanager
def mesh_of(shards: int, tensor: int, rank: int) -> Iterator[DeviceMesh]:
    """That of one rank. What it sends goes nowhere."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=shards * tensor)
    try:
        yield init_device_mesh("cpu", (shards, tensor), mesh_dim_names=("shards", "tensor"))
    finally:
        dist.destroy_process_group()
        _clear_sharding_prop_cache()  # it knows a mesh by its ranks, whichever of them it was made in


def cut_up(rows: int, shards: int, tensor: int) -> list[Piece]:
    """What each rank has of an output layer of one column, which holds the number of its row."""
    found = []
    for rank in range(shards * tensor):
        with mesh_of(shards, tensor, rank) as mesh:
            layer = nn.Linear(1, rows, bias=False)
            layer.weight.data = torch.arange(float(rows))[:, None]
            if tensor > 1:
                parallelize_module(layer, mesh["tensor"], ColwiseParallel(), src_data_rank=None)
            fully_shard(layer, mesh=mesh["shards"])
            (piece,) = pieces_of(layer.named_parameters(), {"weight": Outline((rows, 1), (0,))}, 0).values()
            found.append(piece)
    return found


def test_rows_that_tensor_ranks_have_unequally_many_of_are_where_fsdp_cut_them() -> None:
    """61 rows of d3t2: the tensor ranks have 31 and 30, of which shards have 11, 11 and 9, and 10 each."""
    spans = [(piece.begin[0], piece.begin[0] + len(piece.tensor)) for piece in cut_up(61, 3, 2)]
    assert spans == [(0, 11), (31, 41), (11, 22), (41, 51), (22, 31), (51, 61)]


@pytest.mark.parametrize(
    ("rows", "shards", "tensor"),
    [(61, 3, 2), (61, 4, 2), (61, 3, 1), (64, 2, 4), (35, 4, 3), (5, 3, 4), (32001, 4, 2)],
)
def test_each_row_is_one_ranks_and_in_its_place(rows: int, shards: int, tensor: int) -> None:
    whole = torch.arange(float(rows))[:, None]
    found = torch.full_like(whole, torch.nan)
    pieces = cut_up(rows, shards, tensor)
    for piece in pieces:
        assert piece.whole == (rows, 1)
        assert piece.is_first
        found[piece.box] = piece.tensor
    assert torch.equal(found, whole)
    assert sum(len(piece.tensor) for piece in pieces) == rows


@given(length=st.integers(1, 200), outer=st.integers(1, 9), inner=st.integers(1, 9))
def test_a_chunk_of_a_chunk_is_where_torch_cuts_it(length: int, outer: int, inner: int) -> None:
    """Of fewer than were asked for the last ones are empty."""
    for place, part in enumerate(torch.arange(length).chunk(inner)):
        begin, count = chunk_of(length, inner, place)
        for number, own in enumerate(part.chunk(outer)):
            first, size = chunk_of(count, outer, number)
            assert [*range(begin + first, begin + first + size)] == own.tolist()
        assert all(chunk_of(count, outer, number) == (count, 0) for number in range(len(part.chunk(outer)), outer))
