"""All weights of a model, in one rank; other ranks may have them too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from headrace.training.optimizer.adamw import FlatAdamW, OptimizerSettings
from headrace.training.optimizer.flat_buffers import FlatParameters
from headrace.training.optimizer.offloaded import OffloadedAdamW
from headrace.training.optimizer.parked import Parking
from headrace.training.pieces import Piece
from headrace.training.replicas import Replicas
from headrace.training.sums import BatchSums

_RUN = 256
"""Squares that are added up in float32: of 50 million at once, on a CPU, the norm comes out 0.4 % too small."""


class WholeWeights:
    """Implements `TrainedWeights`."""

    def __init__(
        self, model: nn.Module, dtype: torch.dtype, settings: OptimizerSettings, *, offload: bool = False
    ) -> None:
        """`dtype`: of the compute weights. `offload`: see `OffloadedAdamW`."""
        self._flat = FlatParameters(model, dtype, offload=offload)
        self._offloaded = OffloadedAdamW(self._flat, settings) if offload else None
        self._optimizer: FlatAdamW | OffloadedAdamW = self._offloaded or FlatAdamW(self._flat, settings)
        self._replicas: Replicas | None = None
        self._parking = Parking()

    @property
    def gradient_sums(self) -> Mapping[nn.Parameter, Tensor]:
        """See `PackedLM.gradient_sums`: until the next step."""
        return self._flat.sums

    def join(self, replicas: Replicas) -> None:
        """See `TrainedWeights.join`."""
        self._replicas = replicas

    @property
    def updates(self) -> int:
        return self._optimizer.updates

    @updates.setter
    def updates(self, count: int) -> None:
        self._optimizer.updates = count

    def sum_up(self, sums: BatchSums) -> tuple[BatchSums, float]:
        """See `TrainedWeights.sum_up`."""
        replicas = self._replicas
        if replicas is not None:
            sums = replicas.merged(sums)
            replicas.add_up([self._flat.grads])
        norm = l2_norm(self._flat.grads)
        return sums, norm if replicas is None else replicas.of_first(norm)

    def update(self, scale: float, lr: float) -> None:
        """See `TrainedWeights.update`."""
        self._flat.grads.mul_(scale)
        self._optimizer.update(lr)
        if self._offloaded is None:
            self._flat.publish()

    def forget_gradients(self) -> None:
        """See `TrainedWeights.forget_gradients`."""
        self._flat.grads.zero_()

    def sleep(self, *, gradients: bool) -> None:
        """See `TrainedWeights.sleep`."""
        flat, optimizer, parking = self._flat, self._optimizer, self._parking
        (parking.park if gradients else parking.drop)([flat.grads])
        if flat.compute is not flat.master:
            parking.drop([flat.compute])
        parking.park([flat.master, optimizer.exp_avg, optimizer.exp_avg_sq])

    def wake(self) -> None:
        """See `TrainedWeights.wake`."""
        self._parking.back()
        self._flat.publish()

    def copy(self) -> list[Tensor]:
        """See `TrainedWeights.copy`."""
        return [self._flat.compute.clone()]

    def holding(self, copy: list[Tensor]) -> AbstractContextManager[None]:
        """See `TrainedWeights.holding`."""
        return self._flat.holding(copy[0])

    def named(self, copy: list[Tensor] | None = None) -> Iterator[tuple[str, Tensor]]:
        """See `TrainedWeights.named`. Views: the next step changes them."""
        return self._flat.named(self._flat.compute if copy is None else copy[0])

    def pieces(self, copy: list[Tensor]) -> Mapping[str, Piece]:
        """See `TrainedWeights.pieces`."""
        return {name: Piece.of_whole(tensor) for name, tensor in self.named(copy)}

    def outlines(self) -> dict[str, Tensor]:
        """See `TrainedWeights.outlines`."""
        return {name: tensor.to("meta") for name, tensor in self.named()}

    @torch.no_grad()
    def fill(self, copy: list[Tensor], tensors: Iterable[tuple[str, Tensor]]) -> None:
        """See `TrainedWeights.fill`."""
        into = dict(self.named(copy))
        for name, tensor in tensors:
            into[name].copy_(tensor)

    def state(self, *, to_fill: bool = False) -> Mapping[str, Piece]:
        """See `TrainedWeights.state`: views."""
        optimizer = self._optimizer
        parts = {"master": self._flat.master, "exp_avg": optimizer.exp_avg, "exp_avg_sq": optimizer.exp_avg_sq}
        return {
            f"{part}.{name}": Piece.of_whole(view)
            for part, flat in parts.items()
            for name, view in self._flat.named(flat)
        }

    def publish(self) -> None:
        """See `TrainedWeights.publish`."""
        self._flat.publish()


def l2_norm(flat: Tensor) -> float:
    """Of many numbers, float32 [N]."""
    whole = len(flat) // _RUN * _RUN
    runs = torch.linalg.vector_norm(flat[:whole].view(-1, _RUN), dim=1)
    rest = torch.linalg.vector_norm(flat[whole:])
    return float(torch.linalg.vector_norm(torch.cat([runs, rest[None]]), dtype=torch.float64))
