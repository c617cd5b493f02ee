"""What a view shows of a run now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from headrace.observe import totals
from headrace.observe.durations import quantile
from headrace.observe.metrics import Alarm, ringing
from headrace.observe.record import BatchRecord, Totals
from headrace.observe.run_record import Evaluation, RunRecord
from headrace.observe.shares import Share, shares
from headrace.observe.summary import staleness_histogram
from headrace.store import EventRow
from headrace.store.rollouts import Rollout

_TRAVELS = ("weights_sent", "weights_carried")
WINDOW = 10
"""Batches over which rates, shares and the ETA are taken."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    name: str
    status: str
    version: str
    planned_batches: int | None
    elapsed_s: float
    """Of all processes of the run."""
    eta_s: float | None
    batches: tuple[BatchRecord, ...]
    evaluations: tuple[Evaluation, ...]
    generated_per_s: float | None
    trained_per_s: float | None
    generated_tokens: int
    staleness: dict[int, int]
    """Trained tokens by staleness, all batches."""
    max_staleness: int
    masked_tokens: int
    late_groups: int
    lost_branch_tokens: int
    running: int
    """Groups in generation."""
    ready: int
    """Groups that wait for a batch, or are in the one that is being composed."""
    most_groups: int | None
    """That run or are ready: `async.ahead`, and a batch; None if the run has not said."""
    trained: int
    dropped: dict[str, int]
    generated_samples: int
    failed: dict[str, int]
    """Failed samples by kind."""
    last_failure: str | None
    """Why the last one failed, as `kind: detail`."""
    reward_call_p50_s: float | None
    """Of the calls of reward functions lately."""
    reward_call_p99_s: float | None
    troubles: tuple[EventRow, ...]
    """Events since the process began that say that something is not as it should be, each with a `message`."""
    swap_stall_s: float
    carried: EventRow | None
    """How the newest version travelled, where it was by more than a pointer."""
    shares: tuple[Share, ...]
    """What the trainer's and the engines' time went to lately, see `headrace.observe.shares`."""
    alarms: tuple[Alarm, ...] = ()
    rollouts: tuple[Rollout, ...] = ()
    """The latest that are kept, those to be shown first."""
    keeps_rollouts: bool = True
    only_recorded: bool = False
    """A run of `rollouts_only`: nothing is trained."""

    @property
    def last(self) -> BatchRecord | None:
        return self.batches[-1] if self.batches else None

    @property
    def mismatch(self) -> float | None:
        """Of the last batch on which it was measured."""
        known = (batch.mismatch_mean_abs for batch in reversed(self.batches))
        return next((mean for mean in known if mean is not None), None)

    @property
    def progress(self) -> float | None:
        """0 to 1."""
        return min(len(self.batches) / self.planned_batches, 1.0) if self.planned_batches else None


def take_snapshot(run: RunRecord, rollouts: Sequence[Rollout] = ()) -> Snapshot:
    # A process that has not trained a batch yet is newer than the newest version.
    process = max(run.processes, default=run.branch)
    now = run.processes.get(process, Totals())
    recent = _recent(run.batches, process)
    # From the record just before the window, or from the start of the process.
    before = recent[0].totals if len(recent) > WINDOW else Totals()
    window = recent[1:] if len(recent) > WINDOW else recent
    lately = totals.since(now, before)
    total = run.totals
    return Snapshot(
        name=run.name,
        status=run.status,
        version=f"v{run.number}" if run.branch == 0 else f"v{run.number}~{run.branch}",
        planned_batches=run.planned_batches,
        elapsed_s=total.elapsed_s,
        eta_s=_eta(run, window),
        batches=run.batches,
        evaluations=run.evaluations,
        generated_per_s=lately.generated_tokens / lately.elapsed_s if lately.elapsed_s > 0 else None,
        trained_per_s=_trained_per_s(window),
        generated_tokens=total.generated_tokens,
        staleness=staleness_histogram(run.batches),
        max_staleness=run.config.async_.staleness_bound,
        masked_tokens=sum(batch.masked_tokens for batch in run.batches),
        late_groups=sum(batch.late_groups for batch in run.batches),
        lost_branch_tokens=sum(batch.lost_branch_tokens for batch in run.batches),
        running=run.counts.running,
        ready=run.counts.ready,
        most_groups=None if run.ahead is None else run.ahead + run.config.rollout.prompts_per_batch,
        trained=run.counts.trained,
        dropped=dict(run.counts.dropped),
        generated_samples=total.generated_samples,
        failed=dict(total.failed_samples),
        last_failure=_last_failure(total),
        reward_call_p50_s=quantile(lately.reward_calls, 0.5),
        reward_call_p99_s=quantile(lately.reward_calls, 0.99),
        troubles=_troubles(run.events),
        swap_stall_s=total.swap_stall_s,
        carried=next((event for event in reversed(run.events) if event.kind in _TRAVELS), None),
        shares=shares(lately),
        alarms=ringing(run.so_far),
        rollouts=tuple(rollouts),
        keeps_rollouts=run.config.record.rollouts != 0,
        only_recorded=run.config.rollouts_only,
    )


def _last_failure(total: Totals) -> str | None:
    last = next(reversed(total.failure_words.items()), None)
    return None if last is None else ": ".join(last)


def _troubles(events: Sequence[EventRow]) -> tuple[EventRow, ...]:
    begun = max((place for place, event in enumerate(events) if event.kind == "started"), default=0)
    return tuple(event for event in events[begun:] if "message" in event.data)


def _recent(batches: Sequence[BatchRecord], branch: int) -> Sequence[BatchRecord]:
    """The last batches of this process, one more than the window where there are as many."""
    return [batch for batch in batches[-WINDOW - 1 :] if batch.branch == branch]


def _eta(run: RunRecord, window: Sequence[BatchRecord]) -> float | None:
    if run.planned_batches is None or not window or run.status != "running":
        return None
    return max(run.planned_batches - len(run.batches), 0) * median(batch.step_s for batch in window)


def _trained_per_s(window: Sequence[BatchRecord]) -> float | None:
    seconds = sum(batch.step_s for batch in window)
    return sum(batch.trained_tokens for batch in window) / seconds if seconds > 0 else None
