"""All parameters of a model in a few flat buffers, so that each step over them is a few large operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headrace.training.optimizer.exchanged import exchanged

_AT_ONCE = 1 << 25
_ALIGNMENT = 32
"""Elements; every parameter begins at a multiple of 64 bytes in each dtype in use."""


@dataclass(frozen=True, slots=True)
class _Slot:
    name: str
    shape: torch.Size
    begin: int
    end: int


class FlatParameters:
    """float32 master weights and gradient sums of a model, and its compute weights, each one flat tensor.

    The model's parameters become views of `compute`, which is `master` itself if the compute dtype is float32 and both
    are in one place. Each
    backward pass adds to `grads`: directly where parameters are float32, else through a hook that adds the gradient
    in float32 and frees it, so that small gradients of many micro-batches are not rounded away. Parameters with two
    or more dimensions come first: up to `decayed`, weight decay applies.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, *, offload: bool = False) -> None:
        """`offload`: the masters are in the host's memory, the rest where the model is."""
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        ordered = [pair for pair in named if pair[1].dim() >= 2]
        matrices = len(ordered)
        ordered += [pair for pair in named if pair[1].dim() < 2]
        self._slots: list[_Slot] = []
        size = 0
        self.decayed = 0
        for index, (name, parameter) in enumerate(ordered):
            end = size + parameter.numel()
            self._slots.append(_Slot(name, parameter.shape, size, end))
            size = -(-end // _ALIGNMENT) * _ALIGNMENT
            if index < matrices:
                self.decayed = size
        device = ordered[0][1].device
        self.master = torch.zeros(size, dtype=torch.float32, device="cpu" if offload else device)
        one = dtype is torch.float32 and not offload
        self.compute = self.master if one else torch.zeros(size, dtype=dtype, device=device)
        for slot, (_, parameter) in zip(self._slots, ordered, strict=True):
            self._view(self.master, slot).copy_(parameter.detach())
            parameter.data = self._view(self.compute, slot)
        self.grads = torch.zeros(size, dtype=torch.float32, device=device)  # where the model's own weights were
        self.sums: dict[nn.Parameter, Tensor] = {}
        """By parameter its part of `grads`. What a backward pass adds there itself does not go to the parameter."""
        for slot, (_, parameter) in zip(self._slots, ordered, strict=True):
            self.sums[parameter] = self._view(self.grads, slot)
            self._collect(parameter, self.sums[parameter])
        self._order = {name: place for place, (name, _) in enumerate(named)}
        self.publish()

    def publish(self) -> None:
        """Bring the compute weights up to date with the masters."""
        if self.compute is not self.master:
            for begin in range(0, len(self.master), _AT_ONCE):  # a device may have no room for all masters
                part = slice(begin, begin + _AT_ONCE)
                self.compute[part].copy_(self.master[part])

    def holding(self, values: Tensor) -> AbstractContextManager[None]:
        """Compute with other weights, flat like `compute`, for a while, in which `values` holds the present ones."""
        return exchanged(self.compute.split(_AT_ONCE), values.split(_AT_ONCE))

    def named(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The parameters' parts of `flat`, by name, in the model's order."""
        for slot in sorted(self._slots, key=lambda slot: self._order[slot.name]):
            yield slot.name, self._view(flat, slot)

    def _collect(self, parameter: nn.Parameter, grads: Tensor) -> None:
        if parameter.dtype is torch.float32:
            parameter.grad = grads
            return

        def add(parameter: Tensor) -> None:
            if parameter.grad is not None:  # else the pass has added it itself
                grads.add_(parameter.grad)
                parameter.grad = None

        parameter.register_post_accumulate_grad_hook(add)

    @staticmethod
    def _view(flat: Tensor, slot: _Slot) -> Tensor:
        return flat[slot.begin : slot.end].view(slot.shape)
