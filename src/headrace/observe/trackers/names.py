"""What a run's numbers are called in every tracker."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from headrace.config.evaluation import PLAIN
from headrace.observe.record import BatchRecord, EpochRecord, Totals, no_step
from headrace.observe.run_record import Evaluation

BATCH: Mapping[str, str] = {
    "branch": "run/branch",
    "groups": "batch/groups",
    "samples": "batch/samples",
    "reward_mean": "reward/mean",
    "episode_reward_mean": "reward/episode_mean",
    "reward_min": "reward/min",
    "reward_max": "reward/max",
    "equal_groups": "reward/equal_groups",
    "response_tokens_mean": "response/tokens_mean",
    "truncated_samples": "response/truncated_samples",
    "trained_tokens": "tokens/trained",
    "forwarded_tokens": "tokens/forwarded",
    "padding_tokens": "tokens/padding",
    "rows_read_bytes": "rows/read_bytes",
    "rows_told_bytes": "rows/told_bytes",
    "masked_tokens": "tokens/masked",
    "lost_branch_tokens": "staleness/lost_branch_tokens",
    "late_groups": "staleness/late_groups",
    "loss": "policy/loss",
    "grad_norm": "policy/grad_norm",
    "lr": "policy/lr",
    "skipped": "policy/step_skipped",
    "clip_fraction": "policy/clip_fraction",
    "approx_kl": "policy/approx_kl",
    "entropy": "policy/entropy",
    "kept_mass": "policy/kept_mass",
    "reference_kl": "reference/kl",
    "kl_coefficient": "reference/kl_coefficient",
    "behavior_weight_mean": "correction/weight_mean",
    "behavior_outside_share": "correction/outside_share",
    "effective_token_share": "correction/effective_share",
    "drift_mean_abs": "drift/mean_abs",
    "drift_max_abs": "drift/max_abs",
    "mismatch_tokens": "mismatch/tokens",
    "mismatch_mean_abs": "mismatch/mean_abs",
    "mismatch_max_abs": "mismatch/max_abs",
    "critic_loss": "critic/loss",
    "warm_up": "critic/warm_up",
    "queue_groups": "queue/ready_groups",
    "running_groups": "queue/running_groups",
    "step_s": "time/step_s",
    "mfu": "time/mfu",
    "reward_call_p50_s": "time/reward_call_p50_s",
    "reward_call_p99_s": "time/reward_call_p99_s",
}
"""Fields of `BatchRecord` that are one number; true is 1."""
BATCH_BY_NAME: Mapping[str, str] = {
    "reward_terms": "reward/terms",
    "reward_sources": "reward/sources",
    "failed_samples": "failed_samples",
    "dropped_groups": "dropped_groups",
    "own": "own",
}
"""Those that are numbers by name: `reward/terms/NAME`."""
STEP = frozenset(
    {
        "loss",
        "grad_norm",
        "lr",
        "clip_fraction",
        "approx_kl",
        "entropy",
        "kept_mass",
        "reference_kl",
        "behavior_weight_mean",
        "behavior_outside_share",
        "effective_token_share",
        "drift_mean_abs",
        "drift_max_abs",
        "own",
    }
)
"""Fields of `BatchRecord` that a step of the policy measures: of a batch without one they are 0 and say nothing."""
EPOCH: Mapping[str, str] = {
    "steps": "steps",
    "approx_kl": "approx_kl",
    "step_kl": "step_kl",
    "clip_fraction": "clip_fraction",
}
"""Of `EpochRecord`, under `epoch/1`, `epoch/2`, ..."""
TOTALS: Mapping[str, str] = {
    "elapsed_s": "time/elapsed_s",
    "generate_s": "time/generate_s",
    "train_s": "time/train_s",
    "swap_stall_s": "time/swap_stall_s",
    "mfu_s": "time/mfu_s",
    "lent_s": "time/lent_s",
    "generated_tokens": "tokens/generated_total",
    "generated_samples": "samples/generated_total",
}
"""Of `Totals`: since the process of the run began."""
TOTALS_BY_NAME: Mapping[str, str] = {
    "trainer_s": "time/trainer_s",
    "engines_s": "time/engines_s",
    "busy_s": "time/busy_s",
    "device_s": "time/device_s",
    "wait_s": "time/wait_s",
    "failed_samples": "samples/failed_total",
}
EVALUATION: Mapping[str, str] = {
    "score": "eval/score",
    "response_tokens_mean": "eval/response_tokens_mean",
    "prompts": "eval/prompts",
    "failed": "eval/failed",
    "drawn": "eval/drawn",
    "seconds": "eval/seconds",
    "versions_behind": "eval/versions_behind",
}
"""Fields of `Evaluation`; of a set with a name of its own under `eval/NAME`. Each metric of it is beside them, as
`eval/NAME/pass_at_8`, with its standard error, as `eval/NAME/pass_at_8_stderr`."""
STALENESS = "staleness"
"""`staleness/mean` and `staleness/max` over trained tokens, and `staleness/tokens/N`: how many have staleness N."""
UNNAMED = {"batch": "the step", "totals.reward_calls": "time/reward_call_p50_s and time/reward_call_p99_s"}
"""Numbers of a batch's record that have no name of their own, and what tells them."""
_LONGEST = 100
"""Characters of a name that the user gave, as a reward term's: MLflow takes 250 in all."""


def batch_values(record: BatchRecord) -> dict[str, float]:
    """Every number of the record by its name; what was not measured is left out."""
    return dict(_distinct(_batch(record)))


def evaluation_values(evaluation: Evaluation) -> dict[str, float]:
    """The same of an evaluation."""
    return dict(_evaluation(evaluation))


def _evaluation(evaluation: Evaluation) -> Iterator[tuple[str, float]]:
    prefix = "eval/" if evaluation.set == PLAIN else f"eval/{evaluation.set}/"
    for name, value in _numbers(evaluation, EVALUATION):
        yield prefix + name.removeprefix("eval/"), value
    for metric, found in evaluation.metrics.items():
        name = prefix + metric.replace("@", "_at_")
        for ending, told in (("", found.value), ("_stderr", found.stderr)):
            if told is not None:
                yield name + ending, told


def _batch(record: BatchRecord) -> Iterator[tuple[str, float]]:
    silent = frozenset[str]() if no_step(record) is None else STEP
    yield from _numbers(record, {field: name for field, name in BATCH.items() if field not in silent})
    for field, name in BATCH_BY_NAME.items():
        if field not in silent:
            yield from _by_name(name, getattr(record, field))
    yield from _staleness(record.staleness)
    for place, epoch in enumerate(record.epochs, start=1):
        for name, value in _numbers(epoch, EPOCH):
            yield f"epoch/{place}/{name}", value
    yield from _numbers(record.totals, TOTALS)
    for field, name in TOTALS_BY_NAME.items():
        yield from _by_name(name, getattr(record.totals, field))


def _numbers(
    source: BatchRecord | EpochRecord | Totals | Evaluation, names: Mapping[str, str]
) -> Iterator[tuple[str, float]]:
    for field, name in names.items():
        value = getattr(source, field)
        if value is not None:
            yield name, float(value)


def _by_name(prefix: str, values: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        yield f"{prefix}/{safe(name)}", float(value)


def _staleness(histogram: Mapping[int, int]) -> Iterator[tuple[str, float]]:
    tokens = sum(histogram.values())
    if tokens:
        yield f"{STALENESS}/mean", sum(age * count for age, count in histogram.items()) / tokens
        yield f"{STALENESS}/max", float(max(histogram))
    for age, count in histogram.items():
        yield f"{STALENESS}/tokens/{age}", float(count)


def safe(name: str) -> str:
    """With characters that every tracker takes in a name: `actor: rows of the batch` is `actor/rows_of_the_batch`."""
    return re.sub(r"[^A-Za-z0-9_.\-/]", "_", name.replace(": ", "/"))[:_LONGEST]


def _distinct(values: Iterator[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """Names that are the same once they are plain get a number."""
    seen: dict[str, int] = {}
    for name, value in values:
        seen[name] = seen.get(name, 0) + 1
        yield (name if seen[name] == 1 else f"{name}_{seen[name]}"), value
