"""A model's modules without its weights, to be filled again: nothing is loaded while others compute."""

from __future__ import annotations

import copy
from typing import Any

import torch

from headrace.weights.plane import Received, WeightError, WeightReceiver
from headrace.weights.swap_check import SwapCheck
from headrace.weights.version import Version


class Skeleton:
    """Of a Hugging Face model: its modules and buffers, and the names, shapes and ties of its parameters."""

    def __init__(self, model: Any) -> None:
        parameters = dict(model.named_parameters())
        first = next(iter(parameters.values()))
        self._dtype, self._device = first.dtype, first.device
        self._empty = {name: _without_memory(parameter) for name, parameter in parameters.items()}
        # What the copy is told that it holds already is not copied; a tied parameter is one object with two names.
        told = {id(parameters[name]): empty for name, empty in self._empty.items()}
        self._modules: Any = copy.deepcopy(model, told)

    def received(self, receiver: WeightReceiver) -> tuple[Version, Any, SwapCheck | None]:
        """(version, model, swap check) of the newest whole version. Blocking. Raises WeightError."""
        return receiver.receive_as(self._filled)

    def _filled(self, received: Received) -> tuple[Version, Any, SwapCheck | None]:
        manifest, tensors = received.manifest, received.tensors
        filled: dict[int, Any] = {}
        for name, empty in self._empty.items():
            tensor = tensors.get(name)
            if tensor is None or tensor.shape != empty.shape:
                found = "lacks it" if tensor is None else f"has shape {tuple(tensor.shape)}"
                raise WeightError(
                    f"tensor {name!r} has shape {tuple(empty.shape)} in the engine's model, and {manifest.version} "
                    f"{found}; publish the parameters of the same model"
                )
            own = tensor.detach().to(self._device, self._dtype, copy=True)
            filled[id(empty)] = torch.nn.Parameter(own, requires_grad=False)
        return manifest.version, copy.deepcopy(self._modules, filled), received.check


def _without_memory(parameter: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
