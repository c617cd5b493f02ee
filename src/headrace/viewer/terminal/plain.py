"""The view where stdout is not a terminal: a line for each batch and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.config.evaluation import PLAIN
from headrace.observe.alarms import RECENT
from headrace.observe.glyphs import amount, by_name, decimal, duration, near_zero, percent
from headrace.observe.metrics import Alarm
from headrace.observe.record import BatchRecord, no_step
from headrace.observe.run_record import Estimate, Evaluation
from headrace.observe.untrusted import visible_line
from headrace.store import EventRow
from headrace.viewer.terminal.snapshot import Snapshot

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 300.0

_ROUNDING = 1e-6
"""Of log-probs in float32."""


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
        *([failures(snapshot)] if snapshot.failed else []),
    ]
    waits = [share for share in snapshot.shares if share.is_wait and share.share >= 0.01]
    parts += [f"{_waits(wait.side)} {percent(wait.share)} for {wait.what}" for wait in waits[:2]]
    parts.append(f"ETA {duration(snapshot.eta_s)}")
    return "  ".join(parts)


def _waits(side: str) -> str:
    return f"{side} wait" if side == "engines" else f"{side} waits"


def failures(snapshot: Snapshot) -> str:
    """How many samples of the run failed, of what, and why the last one did."""
    told = f"failed {sum(snapshot.failed.values())} of {snapshot.generated_samples} samples"
    names = "" if snapshot.last_failure and len(snapshot.failed) == 1 else f" ({by_name(snapshot.failed)})"
    return told + names + (f", last {snapshot.last_failure}" if snapshot.last_failure else "")


def batch_line(batch: BatchRecord, planned: int | None) -> str:
    staleness = sum(batch.staleness.values())
    ages = " ".join(f"{age}:{percent(tokens / staleness)}" for age, tokens in sorted(batch.staleness.items()))
    left_out = batch.masked_tokens / max(batch.masked_tokens + batch.trained_tokens, 1)
    parts = [
        f"batch {_of(batch.batch + 1, planned)}",
        f"reward {decimal(batch.reward_mean)}" + _terms(batch),
        f"response {decimal(batch.response_tokens_mean, 1)} tok"
        + (f" cut off {percent(batch.truncated_samples / batch.samples)}" if batch.truncated_samples else ""),
        *_step(batch),
        f"stale {ages or '-'}" + (f" left out {percent(left_out)}" if batch.masked_tokens else ""),
        *([f"weights outside {percent(batch.behavior_outside_share)}"] if batch.behavior_outside_share else []),
        *([] if batch.reference_kl is None else [f"kl {_estimate(batch.reference_kl)}{_coefficient(batch)}"]),
        *([] if batch.entropy is None else [f"entropy {decimal(batch.entropy)}"]),
        *([] if batch.kept_mass is None else [f"kept mass {decimal(batch.kept_mass)}"]),
        *([] if batch.critic_loss is None else [f"critic {decimal(batch.critic_loss)}"]),
        *([] if no_step(batch) else [f"drift {decimal(batch.drift_mean_abs, 4)}"]),
        *([] if batch.mismatch_mean_abs is None else [f"mismatch {decimal(batch.mismatch_mean_abs, 4)}"]),
        f"running {batch.running_groups} ready {batch.queue_groups}",
        f"{batch.step_s:.2f} s",
        *_lost("failed", batch.failed_samples, batch.totals.failure_words),
        *_lost("dropped", batch.dropped_groups, batch.totals.drop_words),
    ]
    return "  ".join(parts)


def _estimate(kl: float) -> str:
    """Rounding is no distance, whichever sign it has."""
    return decimal(kl, 4) if abs(kl) >= _ROUNDING else near_zero(kl, 4)


def _step(batch: BatchRecord) -> list[str]:
    if (why := no_step(batch)) is not None:
        return [f"policy unchanged: {why}"]
    skipped = " (step skipped: not finite)" if batch.skipped else ""
    return [f"loss {near_zero(batch.loss)}", f"grad {decimal(batch.grad_norm, 2)}{skipped}"]


def _terms(batch: BatchRecord) -> str:
    parts = [*batch.reward_terms.items(), *batch.reward_sources.items()]
    terms = ", ".join(f"{name} {decimal(value)}" for name, value in parts)
    return f" ({terms})" if terms else ""


def _lost(what: str, counts: Mapping[str, int], words: Mapping[str, str]) -> list[str]:
    """As `failed 3 (reward_raised 2, timeout 1), last timeout: ...`; nothing if there were none."""
    if not counts:
        return []
    known = [f", last {name}: {why}" for name, why in words.items() if name in counts]
    names = "" if known and len(counts) == 1 else f" ({by_name(counts)})"
    return [f"{what} {sum(counts.values())}{names}{known[-1] if known else ''}"]


def evaluation_line(evaluation: Evaluation) -> str:
    """Of a set with one metric `score 0.500`, else each by its name with its standard error."""
    name = "" if evaluation.set == PLAIN else f" {evaluation.set}"
    found = evaluation.metrics if list(evaluation.metrics) != ["mean"] else {}
    told = [f"{metric} {decimal(each.value)}{error(each)}" for metric, each in found.items()]
    samples = evaluation.drawn or evaluation.prompts
    return "  ".join(
        [
            f"eval{name} v{evaluation.number}",
            *(told or [f"score {decimal(evaluation.score)}"]),
            f"response {decimal(evaluation.response_tokens_mean, 1)} tok",
            f"prompts {evaluation.prompts}"
            + ("" if samples == evaluation.prompts else f" x {samples // evaluation.prompts}"),
            *([f"failed {evaluation.failed}"] if evaluation.failed else []),
            *([f"{evaluation.versions_behind} versions behind"] if evaluation.versions_behind else []),
        ]
    )


def error(estimate: Estimate) -> str:
    """As ` ±0.021`."""
    return "" if estimate.stderr is None else f" ±{decimal(estimate.stderr)}"


def trouble_line(event: EventRow) -> str:
    role = f"{event.data['role']}: " if "role" in event.data else ""
    prompt = f"prompt {event.data['prompt']}: " if "prompt" in event.data else ""
    return f"{event.kind}  {role}{prompt}{event.data['message']}"


class _FailureLines:
    """When samples that fail get a line of their own, since no batch comes that would tell of them: ever more
    seldom."""

    def __init__(self) -> None:
        self._told: int | None = None
        """Failed samples that lines have told of."""
        self._pause_s = self._due_s = 0.0

    def is_due(self, snapshot: Snapshot, *, has_told: bool) -> bool:
        """`has_told`: a batch's line was written just now."""
        failed, now = sum(snapshot.failed.values()), snapshot.elapsed_s
        if self._told is None or has_told:
            self._told, self._pause_s, self._due_s = failed, _FIRST_PAUSE_S, now + _FIRST_PAUSE_S
            return False
        if failed <= self._told or now < self._due_s:
            return False
        self._told, self._pause_s = failed, min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._due_s = now + self._pause_s
        return True


class _AlarmLines:
    """An alarm is told when it begins to ring. One that falls silent for a while, as near a threshold, is not new."""

    def __init__(self) -> None:
        self._rang: dict[str, int] = {}
        """The batch at which each rang last, by its metric."""

    def new(self, snapshot: Snapshot) -> list[Alarm]:
        now = len(snapshot.batches)
        new = [
            alarm
            for alarm in snapshot.alarms
            if alarm.metric not in self._rang or now - self._rang[alarm.metric] > RECENT
        ]
        self._rang |= {alarm.metric: now for alarm in snapshot.alarms}
        return new


class PlainView:
    """Writes what is new. What was recorded before it opened is told in one line."""

    def __init__(self, write: Callable[[str], None]) -> None:
        """`write` is given lines without their end."""
        self._write = lambda line: write(visible_line(line))
        self._told: dict[str, int] | None = None
        self._alarms = _AlarmLines()
        self._failures = _FailureLines()

    def open(self) -> None:
        pass

    def show(self, snapshot: Snapshot) -> None:
        if self._told is None:
            self._told = {
                "batches": len(snapshot.batches),
                "evaluations": len(snapshot.evaluations),
                "troubles": 0,
            }
            if snapshot.batches:
                self._write(f"{snapshot.name} goes on from {snapshot.version}: {describe(snapshot)}")
        for event in snapshot.troubles[self._told["troubles"] :]:
            self._write(trouble_line(event))
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
        for alarm in self._alarms.new(snapshot):
            self._write(f"ALARM {alarm.words}")
        if self._failures.is_due(snapshot, has_told=len(snapshot.batches) > self._told["batches"]):
            self._write(f"batch {_of(len(snapshot.batches), snapshot.planned_batches)}  {failures(snapshot)}")
        self._told = {
            "batches": len(snapshot.batches),
            "evaluations": len(snapshot.evaluations),
            "troubles": len(snapshot.troubles),
        }

    def close(self) -> None:
        pass


def _coefficient(batch: BatchRecord) -> str:
    return "" if batch.kl_coefficient is None else f" x {batch.kl_coefficient:.3g}"


def _of(done: int, planned: int | None) -> str:
    return f"{done}/{planned}" if planned else str(done)
