"""The view where stdout is not a terminal: a line for each batch and evaluation."""

from __future__ import annotations

from collections.abc import Callable

from headrace.observe.glyphs import amount, decimal, duration, percent
from headrace.observe.record import BatchRecord
from headrace.observe.run_record import Evaluation
from headrace.observe.snapshot import Snapshot


def describe(snapshot: Snapshot) -> str:
    """The run now, in one line."""
    last = snapshot.last
    parts = [
        f"batch {_of(len(snapshot.batches), snapshot.planned_batches)}",
        f"reward {decimal(last.reward_mean if last else None)}",
        f"generated {amount(snapshot.generated_per_s)} tok/s",
        f"trained {amount(snapshot.trained_per_s)} tok/s",
        f"running {snapshot.running}",
        f"ready {snapshot.ready}",
    ]
    waits = [share for share in snapshot.shares if share.is_wait and share.share >= 0.01]
    parts += [f"{wait.side} waits {percent(wait.share)} for {wait.what}" for wait in waits[:2]]
    parts.append(f"ETA {duration(snapshot.eta_s)}")
    return "  ".join(parts)


def batch_line(batch: BatchRecord, planned: int | None) -> str:
    staleness = sum(batch.staleness.values())
    ages = " ".join(f"{age}:{percent(tokens / staleness)}" for age, tokens in sorted(batch.staleness.items()))
    left_out = batch.masked_tokens / max(batch.masked_tokens + batch.trained_tokens, 1)
    parts = [
        f"batch {_of(batch.batch + 1, planned)}",
        f"reward {decimal(batch.reward_mean)}",
        f"response {decimal(batch.response_tokens_mean, 1)} tok"
        + (f" cut off {percent(batch.truncated_samples / batch.samples)}" if batch.truncated_samples else ""),
        f"loss {decimal(batch.loss)}",
        f"grad {decimal(batch.grad_norm, 2)}" + (" (step skipped)" if batch.skipped else ""),
        f"stale {ages or '-'}" + (f" left out {percent(left_out)}" if batch.masked_tokens else ""),
        *([f"weights outside {percent(batch.behavior_outside_share)}"] if batch.behavior_outside_share else []),
        *([] if batch.reference_kl is None else [f"kl {decimal(batch.reference_kl, 4)}{_coefficient(batch)}"]),
        *([] if batch.entropy is None else [f"entropy {decimal(batch.entropy)}"]),
        *([] if batch.kept_mass is None else [f"kept mass {decimal(batch.kept_mass)}"]),
        *([] if batch.critic_loss is None else [f"critic {decimal(batch.critic_loss)}"]),
        f"mismatch {decimal(batch.mismatch_mean_abs, 4)}",
        f"running {batch.running_groups} ready {batch.queue_groups}",
        f"{batch.step_s:.2f} s",
    ]
    return "  ".join(parts)


def evaluation_line(evaluation: Evaluation) -> str:
    return (
        f"eval v{evaluation.number}  score {decimal(evaluation.score)}  "
        f"response {decimal(evaluation.response_tokens_mean, 1)} tok  prompts {evaluation.prompts}"
    )


class PlainView:
    """Writes what is new. What was recorded before it opened is told in one line."""

    def __init__(self, write: Callable[[str], None]) -> None:
        """`write` is given lines without their end."""
        self._write = write
        self._told: dict[str, int] | None = None
        self._alarms: tuple[str, ...] = ()

    def open(self) -> None:
        pass

    def show(self, snapshot: Snapshot) -> None:
        if self._told is None:
            self._told = {"batches": len(snapshot.batches), "evaluations": len(snapshot.evaluations)}
            if snapshot.batches:
                self._write(f"{snapshot.name} goes on from {snapshot.version}: {describe(snapshot)}")
        # By version: that of an evaluation, and the one that a batch made.
        lines = [
            (evaluation.number, evaluation_line(evaluation))
            for evaluation in snapshot.evaluations[self._told["evaluations"] :]
        ]
        lines += [
            (batch.batch + 1, batch_line(batch, snapshot.planned_batches))
            for batch in snapshot.batches[self._told["batches"] :]
        ]
        for _, line in sorted(lines, key=lambda item: item[0]):
            self._write(line)
        if snapshot.alarms != self._alarms:
            for alarm in snapshot.alarms:
                self._write(f"ALARM {alarm}")
            self._alarms = snapshot.alarms
        self._told = {"batches": len(snapshot.batches), "evaluations": len(snapshot.evaluations)}

    def close(self) -> None:
        pass


def _coefficient(batch: BatchRecord) -> str:
    return "" if batch.kl_coefficient is None else f" x {batch.kl_coefficient:.3g}"


def _of(done: int, planned: int | None) -> str:
    return f"{done}/{planned}" if planned else str(done)
