"""Weights of which each rank has a part: of every parameter, gradient and moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from math import prod

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from headrace.models.parallel.stages import Outline
from headrace.training.layouts.group import RankGroup
from headrace.training.layouts.sharded_pieces import piece_of
from headrace.training.optimizer.adamw import FusedAdamW, OptimizerSettings, Trained
from headrace.training.optimizer.exchanged import exchanged
from headrace.training.optimizer.parked import Parking
from headrace.training.pieces import Piece
from headrace.training.replicas import Replicas
from headrace.training.sums import BatchSums

_PARTS = ("master", "exp_avg", "exp_avg_sq")


class ShardedWeights:
    """Implements `TrainedWeights` over the DTensors that FSDP2 leaves: masters in float32, of which it makes the
    weights that it computes with, and gradients that it has summed over ranks of data and context.

    Of a model that is cut into stages each rank has those of its own. The matrix that is both embedding and output
    layer is the first stage's and the last one's, who step it alike, by the sum of both gradients."""

    def __init__(
        self,
        model: nn.Module,
        outlines: Mapping[str, Outline],
        dtype: torch.dtype,
        settings: OptimizerSettings,
        ranks: RankGroup,
    ) -> None:
        """`outlines`: of all parameters, of which `model` has those of this rank's stage. `dtype`: of the weights that
        are handed out."""
        self._outlines = outlines
        self._dtype = dtype
        self._ranks = ranks
        self._parameters: dict[str, DTensor] = {}
        self._masters: dict[str, nn.Parameter] = {}
        """This rank's parts: the memory that FSDP2 gathers from."""
        self._moments: dict[str, tuple[Tensor, Tensor]] = {}
        trained = []
        for name, parameter in model.named_parameters():
            assert isinstance(parameter, DTensor), name
            self._parameters[name] = parameter
            master = self._masters[name] = nn.Parameter(_local(parameter.detach()))
            moments = self._moments[name] = torch.zeros_like(master), torch.zeros_like(master)
            if master.numel():
                trained.append(Trained(master, *moments, decays=parameter.dim() >= 2))
        self._optimizer = FusedAdamW(trained, settings)
        self._parking = Parking()
        self._replicas: Replicas | None = None

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
        for name, parameter in self._parameters.items():
            at_both_ends = len(self._outlines[name].stages) > 1
            if parameter.grad is None and (at_both_ends or self._replicas is not None):
                parameter.grad = torch.zeros_like(parameter)
            if at_both_ends and parameter.grad is not None:
                self._ranks.add_ends(_local(parameter.grad))
        sums = self._of_replicas(self._ranks.merged(sums))
        squares = [torch.zeros((), dtype=torch.float64)]
        for name, parameter in self._parameters.items():
            if isinstance(grad := parameter.grad, DTensor):
                own = torch.linalg.vector_norm(grad.to_local(), dtype=torch.float64)
                squares.append(own**2 / (len(self._outlines[name].stages) * _copies(parameter)))
        norm = self._ranks.total(float(sum(squares))) ** 0.5
        return sums, norm if self._replicas is None else self._replicas.of_first(norm)

    def _of_replicas(self, sums: BatchSums) -> BatchSums:
        """What all replicas have, with their gradients. Ranks of this one hear of each other whether it came: who went
        on alone would be waited for, or wait, for as long as a wait may be."""
        if self._replicas is None:
            return sums
        failure: RuntimeError | None = None
        try:
            sums = self._replicas.merged(sums)
            self._replicas.add_up(_local(grad) for each in self._parameters.values() if (grad := each.grad) is not None)
        except RuntimeError as error:
            failure = error
        if self._ranks.total(float(failure is not None)):
            raise failure or RuntimeError("a rank of this replica does not hear of another replica any more")
        return sums

    def update(self, scale: float, lr: float) -> None:
        """See `TrainedWeights.update`."""
        for name, parameter in self._parameters.items():
            grad = parameter.grad
            own = torch.zeros_like(self._masters[name]) if grad is None else _local(grad)
            self._masters[name].grad = own.mul_(scale)
        self._optimizer.update(lr)
        for master in self._masters.values():
            master.grad = None

    def forget_gradients(self) -> None:
        """See `TrainedWeights.forget_gradients`."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def sleep(self, *, gradients: bool) -> None:
        """See `TrainedWeights.sleep`. Gradients that are not needed are not there."""
        grads = (parameter.grad for parameter in self._parameters.values())
        self._parking.park(_local(grad) for grad in grads if grad is not None)
        self._parking.park(self._masters.values())
        self._parking.park(moment for moments in self._moments.values() for moment in moments)

    def wake(self) -> None:
        """See `TrainedWeights.wake`."""
        self._parking.back()

    @torch.no_grad()
    def copy(self) -> list[Tensor]:
        """See `TrainedWeights.copy`."""
        return [master.detach().clone() for master in self._masters.values()]

    def holding(self, copy: list[Tensor]) -> AbstractContextManager[None]:
        """See `TrainedWeights.holding`."""
        return exchanged([*self._masters.values()], copy)

    @torch.no_grad()
    def named(self, copy: list[Tensor] | None = None) -> Iterator[tuple[str, Tensor]]:
        """See `TrainedWeights.named`. Gathered one by one, and told the other stages."""
        values = dict(zip(self._parameters, copy or self._masters.values(), strict=True))
        for name, outline in self._outlines.items():
            own = values.get(name)
            device = self._ranks.shards.device_type
            whole = (
                torch.empty(outline.shape, dtype=self._dtype, device=device) if own is None else self._whole(name, own)
            )
            yield name, self._ranks.from_stage(outline.stages[0], whole)

    def _whole(self, name: str, own: Tensor) -> Tensor:
        """From the parts that the ranks of a stage have of it."""
        parameter = self._parameters[name]
        mesh = parameter.device_mesh
        part = DTensor.from_local(
            own.detach().to(mesh.device_type, self._dtype),
            mesh,
            parameter.placements,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
        # In two steps: torch warns of one over two meshes, and takes these two.
        return part.redistribute(placements=[Replicate(), *part.placements[1:]]).full_tensor()

    def pieces(self, copy: list[Tensor]) -> Mapping[str, Piece]:
        """See `TrainedWeights.pieces`."""
        own, masters = dict(zip(self._parameters, copy, strict=True)), self.state()
        return {name: replace(masters[f"master.{name}"], tensor=tensor) for name, tensor in own.items()}

    def outlines(self) -> dict[str, Tensor]:
        """See `TrainedWeights.outlines`."""
        return {
            name: torch.empty(outline.shape, dtype=self._dtype, device="meta")
            for name, outline in self._outlines.items()
        }

    @torch.no_grad()
    def fill(self, copy: list[Tensor], tensors: Iterable[tuple[str, Tensor]]) -> None:
        """See `TrainedWeights.fill`."""
        pieces = self.state()
        into = dict(zip(self._parameters, copy, strict=True))
        for name, tensor in tensors:
            if name not in into:
                continue
            begin, own = pieces[f"master.{name}"].begin, into[name]
            into[name].copy_(tensor[tuple(slice(b, b + n) for b, n in zip(begin, own.shape, strict=True))])

    def state(self, *, to_fill: bool = False) -> Mapping[str, Piece]:
        """See `TrainedWeights.state`: views."""
        found: dict[str, Piece] = {}
        for name, outline in self._outlines.items():
            parameter = self._parameters.get(name)
            if parameter is None:  # of another stage: of its tensors this rank has nothing
                nothing = Piece(torch.empty((0, *outline.shape[1:])), outline.shape, (0,) * len(outline.shape), False)
                found |= {f"{part}.{name}": nothing for part in _PARTS}
                continue
            master = piece_of(parameter, self._masters[name].detach(), outline, self._ranks.stage)
            parts = {"master": master.tensor}
            parts["exp_avg"], parts["exp_avg_sq"] = self._moments[name]
            for part, own in parts.items():
                found[f"{part}.{name}"] = replace(master, tensor=own)
        return found

    def publish(self) -> None:
        """See `TrainedWeights.publish`: FSDP2 gathers from the masters."""


def _copies(parameter: DTensor) -> int:
    """How many ranks have the same part of it."""
    sizes = zip(parameter.device_mesh.shape, parameter.placements, strict=True)
    return prod(size for size, placed in sizes if isinstance(placed, Replicate))


def _local(tensor: Tensor) -> Tensor:
    """This rank's part."""
    assert isinstance(tensor, DTensor)
    return tensor.to_local()
