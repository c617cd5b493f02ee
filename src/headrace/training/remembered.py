"""What the steps on a batch change, as it was before the first of them: to be gone back to."""

from __future__ import annotations

import torch

from headrace.training.optimizer.trained_weights import TrainedWeights
from headrace.training.state import restore_rng, rng_tensors


class Remembered:
    """One rank's masters and moments, counts and generators, in the host's memory, which it keeps."""

    def __init__(self, weights: TrainedWeights) -> None:
        self._copies = [torch.empty_like(tensor, device="cpu") for tensor in _state(weights)]
        self._counts = 0, 0
        self._rng: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def take(self, weights: TrainedWeights, steps: int, device: torch.device) -> None:
        """As it is now. `steps`: the trainer's count. `device`: that it computes on."""
        for copy, tensor in zip(self._copies, _state(weights), strict=True):
            copy.copy_(tensor)
        self._counts, self._rng = (steps, weights.updates), rng_tensors(device)

    @torch.no_grad()
    def give(self, weights: TrainedWeights, device: torch.device) -> int:
        """As it was at the last `take`. The trainer's count then."""
        for copy, tensor in zip(self._copies, _state(weights, to_fill=True), strict=True):
            tensor.copy_(copy)
        weights.publish()
        restore_rng(self._rng, device)
        steps, weights.updates = self._counts
        return steps


def _state(weights: TrainedWeights, *, to_fill: bool = False) -> list[torch.Tensor]:
    return [piece.tensor for piece in weights.state(to_fill=to_fill).values()]
