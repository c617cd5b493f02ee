"""What this process has of a parameter that several have together."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.distributed.tensor import DTensor, Placement


def own_part(parameter: Tensor, gradient: Sequence[Placement] | None = None) -> Tensor:
    """A DTensor's part, through which its gradient flows; any other tensor as it is. `gradient`: how the whole gradient
    is made of those of the parts; as the parameter of its parts, unless given."""
    return parameter.to_local(grad_placements=gradient) if isinstance(parameter, DTensor) else parameter
