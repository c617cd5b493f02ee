"""The weights of a model in training, with their gradients and the optimiser's state: what a trainer asks of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from headrace.training.pieces import Piece
from headrace.training.replicas import Replicas
from headrace.training.sums import BatchSums


class TrainedWeights(Protocol):
    """Of one rank, perhaps of several; what says so is done by all of them, in one order."""

    updates: int
    """Updates made so far: the t of the bias corrections."""

    def join(self, replicas: Replicas) -> None:
        """There are other replicas, with the same weights: what the micro-batches of a batch add up to is that of all
        from now on."""

    def sum_up(self, sums: BatchSums) -> tuple[BatchSums, float]:
        """Of all ranks: what their micro-batches of the batch add up to, and the L2 norm of the sum of their gradients.
        By all. Raises RuntimeError where a replica is lost: in all ranks of each that is left."""

    def update(self, scale: float, lr: float) -> None:
        """One step, from the gradients times `scale`, which was summed up."""

    def forget_gradients(self) -> None: ...

    def sleep(self, *, gradients: bool) -> None:
        """Give memory back until `wake`: on a device all of it, in the host's memory what can be worked out again.
        `gradients`: whether there are any that are still needed."""

    def wake(self) -> None:
        """All as it was, bit for bit."""

    def copy(self) -> list[Tensor]:
        """This rank's weights as they are now, in the form that only this class knows."""

    def holding(self, copy: list[Tensor]) -> AbstractContextManager[None]:
        """Compute with a `copy` for a while, in which it holds the weights: there is no third set of them."""

    def named(self, copy: list[Tensor] | None = None) -> Iterator[tuple[str, Tensor]]:
        """All weights, or those of a `copy`, by Hugging Face name, whole, in compute dtype, tied ones once. The next
        one may take the place of the last. By all."""

    def pieces(self, copy: list[Tensor]) -> Mapping[str, Piece]:
        """What this rank has of the weights of a `copy`, by the names of `named`: views."""

    def outlines(self) -> dict[str, Tensor]:
        """Names, shapes and dtypes of `named`: tensors without memory."""

    def fill(self, copy: list[Tensor], tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Set a `copy` to these weights, by the names of `named`, whole."""

    def state(self, *, to_fill: bool = False) -> Mapping[str, Piece]:
        """What a continuation needs of this rank's: `master.NAME`, `exp_avg.NAME` and `exp_avg_sq.NAME`. `to_fill`:
        what is written into them counts once it is `publish`ed."""

    def publish(self) -> None:
        """Compute with the master weights as they are in `state` now, which was told `to_fill`."""
