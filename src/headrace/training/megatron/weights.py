"""The weights of a Megatron-Core model in training, told and saved as Hugging Face has them.

So versions reach every engine, and a checkpoint goes on with either back-end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from headrace.training.megatron.language_model import MegatronLM
from headrace.training.megatron.names import as_stored
from headrace.training.optimizer.adamw import OptimizerSettings
from headrace.training.optimizer.whole_weights import WholeWeights
from headrace.training.pieces import Piece


class MegatronWeights(WholeWeights):
    """Implements `TrainedWeights`. Of fused parameters, what Hugging Face has in other rows is copied out and in."""

    def __init__(
        self, model: MegatronLM, dtype: torch.dtype, settings: OptimizerSettings, *, offload: bool = False
    ) -> None:
        """See `WholeWeights`."""
        super().__init__(model.gpt, dtype, settings, offload=offload)
        self._names = model.names
        self._told: list[tuple[Tensor, Tensor]] = []
        """Of what `state` told to be filled, as copies: the place in the masters or moments, and the copy."""

    def named(self, copy: list[Tensor] | None = None) -> Iterator[tuple[str, Tensor]]:
        """See `TrainedWeights.named`. Most are views: the next step changes them."""
        for name, tensor in super().named(copy):
            yield from self._names.split(name, tensor)

    @torch.no_grad()
    def fill(self, copy: list[Tensor], tensors: Iterable[tuple[str, Tensor]]) -> None:
        """See `TrainedWeights.fill`."""
        into = {part: view for name, tensor in super().named(copy) for part, view in self._names.views(name, tensor)}
        for part, tensor in tensors:
            into[part].copy_(tensor.view(into[part].shape))

    def state(self, *, to_fill: bool = False) -> Mapping[str, Piece]:
        """See `TrainedWeights.state`: of fused parameters copies, kept only where `publish` is to take them."""
        self._told.clear()
        found = {}
        for name, piece in super().state().items():
            kind, _, parameter = name.partition(".")
            for part, view in self._names.views(parameter, piece.tensor):
                told = as_stored(view, piece.tensor)
                if to_fill and told.data_ptr() != view.data_ptr():
                    self._told.append((view, told))
                found[f"{kind}.{part}"] = Piece.of_whole(told)
        return found

    @torch.no_grad()
    def publish(self) -> None:
        """See `TrainedWeights.publish`."""
        for view, told in self._told:
            view.copy_(told.view(view.shape))
        self._told.clear()
        super().publish()
