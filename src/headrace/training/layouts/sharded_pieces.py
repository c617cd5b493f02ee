"""Which piece of each parameter a rank has, of a model that FSDP2 and tensor parallel have cut up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

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
    mesh, placements = parameter.device_mesh, parameter.placements
    _, begin = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
    here = zip(mesh.get_coordinate() or (), placements, strict=True)
    is_first = all(place == 0 for place, placed in here if isinstance(placed, Replicate))
    return Piece(own, tuple(parameter.shape), tuple(begin), is_first and stage == outline.stages[0])
