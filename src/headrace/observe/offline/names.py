"""What the numbers of an offline trainer are called in every tracker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.observe.offline.record import HeldOutRows, Measured, OfflineStep
from headrace.observe.offline.summary import told

STEP: Mapping[str, str] = {
    "branch": "run/branch",
    "rows": "batch/rows",
    "grad_norm": "train/grad_norm",
    "lr": "train/lr",
    "skipped": "train/step_skipped",
    "trained_tokens": "tokens/trained",
    "forwarded_tokens": "tokens/forwarded",
    "padding_tokens": "tokens/padding",
    "elapsed_s": "time/elapsed_s",
}
"""Fields of `OfflineStep`; those of `measured` are under `train/`, as `train/accuracy`."""
EVALUATION: Mapping[str, str] = {"rows": "eval/rows", "seconds": "eval/seconds"}
"""Fields of `HeldOutRows`; those of `measured` are under `eval/`."""
UNNAMED = {"step": "the step", "branch": "run/branch"}


def step_values(step: OfflineStep) -> dict[str, float]:
    """Every number of the record by its name; what was not measured is left out."""
    return dict(_measured("train", step.measured)) | {name: float(getattr(step, key)) for key, name in STEP.items()}


def held_out_values(found: HeldOutRows) -> dict[str, float]:
    """The same of an evaluation."""
    return dict(_measured("eval", found.measured)) | {
        name: float(getattr(found, key)) for key, name in EVALUATION.items()
    }


def _measured(prefix: str, measured: Measured) -> Iterator[tuple[str, float]]:
    for name, value in told(measured).items():
        yield f"{prefix}/{name}", value
