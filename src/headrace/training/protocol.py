"""The contract between whoever has packed micro-batches and whoever turns them into new weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from torch import Tensor

from headrace.errors import HeadraceError
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import MicroBatch
from headrace.store.media.files import Digest
from headrace.weights.plane import Manifest, Share

Scalar = Tensor | float


class CheckpointError(HeadraceError, RuntimeError):
    """A checkpoint of the trainer cannot be read, or is not of this model."""


@dataclass(frozen=True, slots=True)
class LossTerms:
    """What one micro-batch adds to its batch: the loss is sum of numerators / sum of denominators."""

    numerator: Tensor
    """Scalar, differentiable sum."""
    denominator: Scalar
    stats: dict[str, Scalar] = field(default_factory=dict)
    """Sums, added up over the batch's micro-batches. Detached."""
    maxima: dict[str, Scalar] = field(default_factory=dict)
    """Maxima, of which the largest over the micro-batches is kept. Detached."""
    columns: dict[str, Tensor] = field(default_factory=dict)
    """[N] each: what the loss worked out and later passes over the same samples are to find as columns. Detached."""


class Loss(Protocol):
    """The objective, with its settings."""

    def __call__(self, outputs: Tensor, micro: MicroBatch, /) -> LossTerms:
        """`outputs`: [N] or [N, K] float32, differentiable; what the trainer's `Outputs` makes of the model."""


class Outputs(Protocol):
    """What a loss sees of the model."""

    def __call__(self, lm: PackedLM, micro: MicroBatch, /) -> Tensor:
        """[N] or [N, K] float32, 0 outside `micro.mask`."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one optimiser step did. Sums and maxima are over its micro-batches."""

    loss: float
    """Sum of numerators / sum of denominators; 0 if the latter is 0."""
    grad_norm: float
    """L2 norm of the gradient of `loss`, before clipping; may be NaN or infinite if `skipped`."""
    lr: float
    skipped: bool
    """True: the gradient was not finite, or nothing was to be trained; the weights stay."""
    denominator: float
    stats: dict[str, float]
    maxima: dict[str, float]
    forwarded_tokens: int
    """That were computed: those that samples of a micro-batch begin with once."""
    trained_tokens: int
    padding_tokens: int
    operations: float = 0.0
    """Model FLOPs of what was computed, forward and backward (`models/operations.py`)."""
    read_bytes: int = 0
    """Of rows' arrays that were read by ref since the step before: of all ranks."""
    told_bytes: int = 0
    """Of rows that a rank was told by the one beside it that read them."""


@dataclass(frozen=True, slots=True)
class Written:
    """What one rank wrote of a checkpoint."""

    count: int
    """Bytes of the tensors that ranks write together."""
    size: int
    """Bytes of them that all ranks have to write."""
    files: Mapping[str, Digest] = field(default_factory=dict)
    """Of those that this rank wrote alone, by their path in the folder."""


@dataclass(frozen=True, slots=True)
class PartWritten:
    """What one rank wrote of a version that leaves. In bytes."""

    size: int
    came: int = 0
    """Of `size`: what ranks have that do not see the memory."""
    sent: int = 0
    """What these sent for it."""


class Saved(Protocol):
    """What is to be written of a checkpoint."""

    def write(self, path: Path) -> Written:
        """Into the folder `path`, which is made if need be. Blocking; on any thread. Raises OSError."""


class Trainer(Protocol):
    """Blocking; call it on one compute lane."""

    @property
    def step_count(self) -> int:
        """Optimiser steps so far, those included whose gradient was not finite; without those on nothing."""

    def accumulate(self, micro: MicroBatch) -> Mapping[str, Tensor]:
        """Forward and backward of the loss's numerator; gradients add up in float32, nothing is stepped. Returns the
        loss's columns, on the micro-batch's device."""

    def step(self) -> StepReport:
        """Divide the gradients by the summed denominator, clip, and make one optimiser step."""

    def rate(self) -> float:
        """Operations a second that the device makes at most, measured now; 0 of one that is none."""

    def discard(self) -> None:
        """Forget what was accumulated since the last step."""

    def sleep(self) -> None:
        """Give memory back: on a device all of it, to the host; in the host's memory what can be worked out again.
        Until `wake` nothing else is to be asked, but `discard`."""

    def wake(self) -> None:
        """Go on where it was, bit for bit. One that is awake stays as it is."""

    def logprobs(self, micro: MicroBatch) -> Tensor:
        """[N] float32 on the micro-batch's device, under the present weights, without gradients."""

    def outputs(self, micro: MicroBatch, of: Outputs | None = None) -> Tensor:
        """What the loss would see, or what `of` makes of the model, on the micro-batch's device, under the present
        weights, without gradients."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The weights by Hugging Face name, in compute dtype, tied ones once. Views: the next step changes them."""

    def saved(self, *, copies: bool) -> Saved:
        """All that `load` needs, with a loadable Hugging Face folder in `model/`, to be written: as it is now, whatever
        the trainer does afterwards; without `copies` it is to be written before the trainer does anything, but for
        passes under the copy that it keeps of its own weights. By all ranks."""

    def save(self, path: Path) -> None:
        """Write that into the folder `path`."""

    def load(self, path: Path) -> None:
        """Continue exactly where `save` was called. Raises CheckpointError."""

    def begin_from(self, path: Path, *, masters: bool, optimizer: bool) -> None:
        """Take what another trainer of this model saved into `path`: its master weights, the moments of its optimiser.
        Raises CheckpointError."""

    def export(self, path: Path) -> Written:
        """Write the weights, config and tokenizer as a folder that `transformers` loads: of several ranks each what it
        has."""


class PolicyTrainer(Trainer, Protocol):
    """One whose model may be its own reference too."""

    def keep_reference(self) -> None:
        """Keep a copy of the weights as they are now, for `reference_logprobs`."""

    def reference_logprobs(self, micro: MicroBatch) -> Tensor:
        """As `logprobs`, under the weights of `keep_reference`."""


class FrozenModel(Protocol):
    """One that only scores. Blocking; call it on one compute lane."""

    def logprobs(self, micro: MicroBatch) -> Tensor:
        """[N] float32 on the micro-batch's device, 0 outside its mask."""

    def require_fits(self, manifest: Manifest) -> None:
        """That a publication has all weights that it computes with, in their shapes, no others. Raises WeightError."""

    @property
    def share(self) -> Share:
        """Which of its ranks this one is, of those that have parts of it. Not before they have joined."""

    def of_any(self, fault: str | None) -> str | None:
        """The first fault that a rank of this model tells, if it has several; else this one. By all."""

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Compute with these weights from now on, by Hugging Face name: all that it has, or some after the others."""

    def saved(self, *, copies: bool) -> Saved:
        """Its weights, to be written. `copies`: see `Trainer.saved`."""

    def load(self, path: Path) -> None:
        """What was written of them into the folder `path`. Raises CheckpointError."""
