"""A run in numbers: what `summary.json` holds and `headrace inspect --json` prints. The names are stable.

What each means is in `observe/metrics/run.py`, of which docs/metrics.md is made.

What was not measured (yet) is null. Work that a restore took back counts in what was generated and in the
times, not in what was trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.config.evaluation import PLAIN
from headrace.observe.durations import quantile
from headrace.observe.finite_json import finite_json
from headrace.observe.largest import largest
from headrace.observe.metrics import ringing
from headrace.observe.record import BatchRecord
from headrace.observe.run_record import Evaluation, RunRecord
from headrace.store.media.files import LOCAL, Files, write_whole


def build_summary(run: RunRecord) -> dict[str, Any]:
    """The fields of `summary.json`, in its order."""
    batches, total, counts = run.batches, run.totals, run.counts
    trained_tokens = sum(batch.trained_tokens for batch in batches)
    return {
        "status": run.status,
        "error": run.error,
        "version": run.number,
        "wall_s": total.elapsed_s,
        "groups": {
            "issued": counts.issued,
            "running": counts.running,
            "ready": counts.ready,
            "trained": counts.trained,
            "dropped": dict(counts.dropped),
            "drop_words": dict(total.drop_words),
        },
        "samples": {
            "generated": total.generated_samples,
            "trained": sum(batch.samples for batch in batches),
            "truncated": sum(batch.truncated_samples for batch in batches),
            "failed": dict(total.failed_samples),
            "failure_words": dict(total.failure_words),
        },
        "tokens": {
            "generated": total.generated_tokens,
            "trained": trained_tokens,
            "generated_per_s": _ratio(total.generated_tokens, total.elapsed_s),
            "trained_per_s": _ratio(trained_tokens, total.elapsed_s),
            "masked": sum(batch.masked_tokens for batch in batches),
            "nonpad_share": _nonpad_share(batches),
        },
        "staleness": _staleness(batches),
        "reward": {
            "first": batches[0].reward_mean if batches else None,
            "last": batches[-1].reward_mean if batches else None,
            "terms": _terms(batches),
            "call_p50_s": quantile(total.reward_calls, 0.5),
            "call_p99_s": quantile(total.reward_calls, 0.99),
        },
        "eval": _evaluations(run),
        "best": _best(run),
        "time": {
            "generate_s": total.generate_s,
            "train_s": total.train_s,
            "swap_stall_s": total.swap_stall_s,
            "trainer_s": dict(total.trainer_s),
            "engines_s": dict(total.engines_s),
            "wait_s": dict(total.wait_s),
            "busy": {name: _ratio(seconds, total.elapsed_s) for name, seconds in total.busy_s.items()},
            "devices": {name: _ratio(seconds, total.elapsed_s) for name, seconds in total.device_s.items()},
            "lent": _ratio(total.lent_s, total.elapsed_s),
            "mfu": {
                "training": _ratio(total.mfu_s, total.train_s) or None,
                "run": _ratio(total.mfu_s, total.elapsed_s) or None,
            },
        },
        "correction": {
            "outside_share": _mean(batches, "behavior_outside_share"),
            "effective_share": _mean(batches, "effective_token_share"),
        },
        "mismatch": {
            "mean_abs": _mean(batches, "mismatch_mean_abs", per="mismatch_tokens"),
            "max_abs": _largest(batch.mismatch_max_abs for batch in batches),
            "tokens": sum(batch.mismatch_tokens for batch in batches),
        },
        "drift": {
            "mean_abs": _mean(batches, "drift_mean_abs"),
            "max_abs": _largest(batch.drift_max_abs for batch in batches if batch.trained_tokens),
        },
        "kept_mass": {
            "first": batches[0].kept_mass if batches else None,
            "last": batches[-1].kept_mass if batches else None,
        },
        "alarms": [asdict(alarm) for alarm in ringing(run.so_far)],
        "seed": run.config.seed,
        "config_sha256": run.config_sha256,
    }


def write_summary(path: Path, summary: dict[str, Any], files: Files = LOCAL) -> None:
    """Whole or not at all; what is not finite as null. Raises DiskFull."""
    write_whole(path, (finite_json(summary, indent=2) + "\n").encode(), files)


def staleness_histogram(batches: Sequence[BatchRecord]) -> dict[int, int]:
    """Trained tokens by staleness, in rising order."""
    histogram: dict[int, int] = {}
    for batch in batches:  # `Counter.update` takes several times as long, and a view asks each second
        for value, tokens in batch.staleness.items():
            histogram[value] = histogram.get(value, 0) + tokens
    return dict(sorted(histogram.items()))


def _staleness(batches: Sequence[BatchRecord]) -> dict[str, Any]:
    histogram = staleness_histogram(batches)
    return {
        "max": max(histogram, default=None),
        "mean": _ratio(sum(value * tokens for value, tokens in histogram.items()), sum(histogram.values())),
        "histogram": {str(value): tokens for value, tokens in histogram.items()},
    }


def _terms(batches: Sequence[BatchRecord]) -> dict[str, dict[str, float]]:
    """Each by its first and its last batch that has it."""
    first = {name: value for batch in reversed(batches) for name, value in batch.reward_terms.items()}
    last = {name: value for batch in batches for name, value in batch.reward_terms.items()}
    return {name: {"first": first[name], "last": last[name]} for name in first}


def _evaluations(run: RunRecord) -> dict[str, Any]:
    """`before` and `after` are of the plain set."""
    sets = run.sets
    seconds = [evaluation.seconds for evaluation in run.evaluations if evaluation.seconds is not None]
    behind = [each.versions_behind for each in run.evaluations if each.versions_behind is not None]
    return {
        **before_and_after(sets.get(PLAIN, ())),
        "sets": {name: _set(each) for name, each in sets.items()},
        "seconds": sum(seconds) if seconds else None,
        "versions_behind": max(behind, default=None),
    }


def _best(run: RunRecord) -> dict[str, Any]:
    """`checkpoint` is relative to the run's folder; null for version 0 as well, the initial model."""
    best = run.best
    if best is None:
        return {"version": None, "metric": None, "value": None, "checkpoint": None}
    folder = None if best.folder is None else f"checkpoints/{best.folder}"
    return {"version": best.number, "metric": best.metric, "value": best.value, "checkpoint": folder}


def before_and_after(evaluations: Sequence[Evaluation]) -> dict[str, float | None]:
    """The last one counts as `after` only if it is of a later version than the first."""
    if not evaluations:
        return {"before": None, "after": None}
    first, last = evaluations[0], evaluations[-1]
    return {"before": first.score, "after": last.score if last.number > first.number else None}


def _set(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    last = evaluations[-1]
    return {
        **before_and_after(evaluations),
        "version": last.number,
        "prompts": last.prompts,
        "failed": last.failed,
        "metrics": {name: asdict(found) for name, found in last.metrics.items()},
    }


def _nonpad_share(batches: Sequence[BatchRecord]) -> float | None:
    computed = sum(batch.forwarded_tokens for batch in batches)
    padding = sum(batch.padding_tokens for batch in batches)
    return _ratio(computed - padding, computed)


def _largest(values: Iterable[float | None]) -> float | None:
    """Of those that were measured; NaN if one is."""
    known = [value for value in values if value is not None]
    return largest(known) if known else None


def _mean(batches: Sequence[BatchRecord], field: str, *, per: str = "trained_tokens") -> float | None:
    """Over the tokens that `per` counts, of the batches that have a value."""
    known = [(value, getattr(batch, per)) for batch in batches if (value := getattr(batch, field)) is not None]
    return _ratio(sum(value * tokens for value, tokens in known), sum(tokens for _, tokens in known))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
