"""An offline trainer in numbers: what its `summary.json` holds and `headrace inspect --json` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headrace.observe.offline.record import Measured
from headrace.observe.offline.run_record import OfflineRun


def build_summary(run: OfflineRun) -> dict[str, Any]:
    """The fields of `summary.json`, in its order; what was not measured is null."""
    steps, evaluations = run.steps, run.evaluations
    tokens = sum(step.forwarded_tokens for step in steps)
    best = min(evaluations, key=lambda each: each.measured.loss, default=None)
    return {
        "status": run.status,
        "error": run.error,
        "kind": run.kind,
        "steps": run.number,
        "skipped_steps": sum(step.skipped for step in steps),
        "first_loss": steps[0].measured.loss if steps else None,
        "last_loss": steps[-1].measured.loss if steps else None,
        "tokens": tokens,
        "trained_tokens": sum(step.trained_tokens for step in steps),
        "padding_tokens": sum(step.padding_tokens for step in steps),
        "wall_s": run.wall_s,
        "tokens_per_s": tokens / run.wall_s if run.wall_s else None,
        "last": told(steps[-1].measured) if steps else None,
        "eval": {
            "rows": evaluations[-1].rows if evaluations else None,
            "before": told(evaluations[0].measured) if evaluations else None,
            "after": told(evaluations[-1].measured) if len(evaluations) > 1 else None,
            "lowest_loss_step": None if best is None else best.step,
        },
        "seed": run.config.seed,
        "config_sha256": run.config_sha256,
    }


def told(measured: Measured) -> dict[str, float]:
    """What was measured, by name."""
    return {name: value for name, value in asdict(measured).items() if value is not None}
