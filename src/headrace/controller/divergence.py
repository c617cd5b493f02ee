"""Ends a run that has long stopped learning."""

from __future__ import annotations

from headrace.roles.actor import TrainedStep

_PATIENCE = 10
"""Batches. One may be skipped for an outlier; so many in a row are no outliers."""


class TrainingDiverged(RuntimeError):
    """Batch after batch had no gradient to step on."""


class Divergence:
    """Counts batches in a row all of whose steps were skipped, since their gradient was not finite."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def look_at(self, step: TrainedStep) -> None:
        """Raises TrainingDiverged."""
        tried = [report for report in step.reports if report.denominator]
        if tried and all(report.skipped for report in tried):
            self._in_a_row += 1
        elif tried:
            self._in_a_row = 0
        if self._in_a_row >= _PATIENCE:
            raise TrainingDiverged(
                f"the gradient was not finite in {_PATIENCE} batches in a row, up to batch {step.batch}: the weights "
                "have not changed since. Look at loss and grad_norm with `headrace inspect RUN --batches`; lower "
                "trainer.optimizer.lr, use model.dtype float32, or mend your own loss, and begin again from an earlier "
                "checkpoint"
            )
