"""What the micro-batches of one batch add up to, without waiting for the device before the step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from headrace.models.operations import NOTHING, Computed
from headrace.models.packing import MicroBatch
from headrace.training.protocol import LossTerms, Scalar, StepReport


@dataclass(slots=True)
class BatchSums:
    numerator: Scalar = 0.0
    denominator: Scalar = 0.0
    stats: dict[str, Scalar] = field(default_factory=dict)
    maxima: dict[str, Scalar] = field(default_factory=dict)
    forwarded_tokens: int = 0
    trained_tokens: Scalar = 0
    padding_tokens: int = 0
    """Places of the packed rows that belong to no sample."""
    operations: float = 0.0

    def add(self, terms: LossTerms, micro: MicroBatch, computed: Computed = NOTHING) -> None:
        """`computed`: by a training pass; nothing where there was none."""
        self.numerator = self.numerator + terms.numerator.detach()
        self.denominator = self.denominator + _plain(terms.denominator)
        for name, value in terms.stats.items():
            self.stats[name] = self.stats.get(name, 0.0) + _plain(value)
        for name, value in terms.maxima.items():
            best = self.maxima.get(name)
            self.maxima[name] = _plain(value) if best is None else _larger(best, _plain(value))
        self.forwarded_tokens += computed.tokens
        self.trained_tokens = self.trained_tokens + micro.mask.sum()
        self.operations += computed.operations
        self.padding_tokens += micro.num_tokens - int(micro.sequence_starts[-1])

    def report(self, *, grad_norm: float, lr: float, skipped: bool) -> StepReport:
        """Of the step that is made of them. Waits for the device."""
        denominator = float(self.denominator)
        return StepReport(
            loss=float(self.numerator) / denominator if denominator else 0.0,
            grad_norm=grad_norm,
            lr=lr,
            skipped=skipped,
            denominator=denominator,
            stats={name: float(value) for name, value in self.stats.items()},
            maxima={name: float(value) for name, value in self.maxima.items()},
            forwarded_tokens=self.forwarded_tokens,
            trained_tokens=int(self.trained_tokens),
            padding_tokens=self.padding_tokens,
            operations=self.operations,
        )


def _plain(value: Scalar) -> Scalar:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _larger(a: Scalar, b: Scalar) -> Scalar:
    """The larger of two; NaN if either is."""
    return torch.maximum(torch.as_tensor(a), torch.as_tensor(b))
