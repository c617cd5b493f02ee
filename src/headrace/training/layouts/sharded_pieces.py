"""Which piece of each parameter a rank has, of a model that FSDP2 and tensor parallel have cut up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from headrace.models.parallel.stages import Outline
from headrace.training.pieces import Piece

Outlines = Mapping[str, Outline]
"""Of all parameters, by name."""


def pieces_of(parameters: Iterable[tuple[str, nn.Parameter]], outlines: Outlines, stage: int) -> dict[str, Piece]:
    """Of those that a rank of this stage has, by name. Views."""
    found = {}
    for name, parameter in parameters:
        whole = parameter.detach()
        assert isinstance(whole, DTensor), name
        found[name] = piece_of(whole, whole.to_local(), outlines[name], stage)
    return found


def piece_of(parameter: DTensor, own: Tensor, outline: Outline, stage: int) -> Piece:
    """`own`, of the shape of what this rank has of `parameter`, with its place in the whole."""
    mesh, shape = parameter.device_mesh, tuple(parameter.shape)
    begin, lengths, is_first = [0] * len(shape), [*shape], stage == outline.stages[0]
    axes = [*zip(mesh.get_coordinate() or (), mesh.shape, parameter.placements, strict=True)]
    # FSDP2, the outer axis, cuts up what the inner one has left. torch's own offsets of a rank are of another cut,
    # where tensor ranks have rows of uneven count.
    for place, count, placed in reversed(axes):
        if isinstance(placed, Replicate):
            is_first = is_first and place == 0
            continue
        assert isinstance(placed, (Shard, _StridedShard)), placed
        first, lengths[placed.dim] = chunk_of(lengths[placed.dim], count, place)
        begin[placed.dim] += first
    assert tuple(own.shape) == tuple(lengths), f"has {tuple(own.shape)} of {shape}, and its place has {lengths}"
    return Piece(own, shape, tuple(begin), is_first)


def chunk_of(length: int, count: int, place: int) -> tuple[int, int]:
    """Where it begins, and its length: of `length` numbers that `torch.chunk` cuts into `count`, the last ones perhaps
    shorter, or empty."""
    size = -(-length // count)
    begin = min(place * size, length)
    return begin, min(size, length - begin)
