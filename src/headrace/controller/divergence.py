"""Ends a run that has long stopped learning."""

from __future__ import annotations

from headrace.errors import HeadraceError
from headrace.roles.actors.trained_step import TrainedStep

_PATIENCE = 10
"""Batches. One may be skipped for an outlier; so many in a row are no outliers."""


class TrainingDiverged(HeadraceError, RuntimeError):
    """Batch after batch had no gradient to step on."""


class Divergence:
    """Counts batches in a row all of whose steps were skipped, since their gradient was not finite, and batches in a
    row all of whose samples were left out of the loss."""

    def __init__(self, *, masks_truncated: bool) -> None:
        """`masks_truncated`: samples that were cut off are left out."""
        self._in_a_row = 0
        self._masks_truncated = masks_truncated
        self._all_cut_off = 0

    def look_at(self, step: TrainedStep) -> None:
        """Raises TrainingDiverged."""
        if self._masks_truncated:
            self._look_at_lengths(step)
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

    def _look_at_lengths(self, step: TrainedStep) -> None:
        all_cut_off = step.stats.truncated_samples == step.stats.samples
        self._all_cut_off = self._all_cut_off + 1 if all_cut_off else 0
        if self._all_cut_off >= _PATIENCE:
            raise TrainingDiverged(
                f"every sample was cut off in {_PATIENCE} batches in a row, up to batch {step.batch}, and "
                "algorithm.truncated is mask, which leaves them out: the weights have not changed since. Raise "
                "rollout.sampling.max_new_tokens (or engine.max_context, or rollout.max_turns), or use "
                "algorithm.truncated: terminal"
            )
