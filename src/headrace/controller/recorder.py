"""Writes a run's record: one entry for each batch and evaluation, and events as they come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from headrace.algorithms.corrections import effective_sample_size
from headrace.algorithms.policy_loss import OWN
from headrace.controller.time_spent import TimeSpent
from headrace.engines.pool import EnginePool
from headrace.experience.flow import Flow
from headrace.experience.prompts.dataset import source_of
from headrace.observe.durations import Durations, quantile
from headrace.observe.largest import largest
from headrace.observe.listeners import NOBODY, Listeners
from headrace.observe.record import BatchRecord, EpochRecord, Totals
from headrace.observe.run_record import Evaluation
from headrace.observe.tally import Tally
from headrace.observe.totals import add, since
from headrace.observe.waits import WaitMeter
from headrace.roles.actors.trained_step import TrainedStep
from headrace.runtime.protocol import Clock
from headrace.store import MetricRow, RunStore
from headrace.training.gap import Gap
from headrace.training.protocol import StepReport
from headrace.weights.version import Version


class Recorder:
    def __init__(
        self,
        store: RunStore,
        clock: Clock,
        engines: EnginePool,
        flow: Flow,
        tally: Tally,
        waits: WaitMeter,
        time: TimeSpent,
        reward_times: Durations,
        *,
        branch: int,
        has_sources: bool = False,
        kl_coefficient: Callable[[int], float | None] = lambda batch: None,
        listeners: Listeners = NOBODY,
    ) -> None:
        """`kl_coefficient`: of the penalty on a batch's KL to the reference, where it moves. `has_sources`: there are
        several, and a prompt's id begins with the name of its own."""
        self._has_sources = has_sources
        self._listeners = listeners
        self._kl_coefficient = kl_coefficient
        self._store = store
        self._clock = clock
        self._engines = engines
        self._flow = flow
        self._tally = tally
        self._waits = waits
        self._time = time
        self._reward_times = reward_times
        self._before = Totals()
        """At the batch before."""
        self._at_fork: Totals | None = None
        """When this process went on on its present branch, if it went back."""
        self._branch = branch
        self._began = clock.now()
        self._last_step = self._began
        self._train_s = 0.0
        self._operations = 0.0
        self.rate = 0.0
        """Operations a second that the trainer's devices make at most; 0: not known."""

    @property
    def branch(self) -> int:
        """Of the versions that are made now: the totals are of its time."""
        return self._branch

    def go_back(self, branch: int) -> None:
        """The run goes on on a new branch: what was done before stays in the totals of the one that it leaves."""
        self.progress()
        before = self.totals()
        self._at_fork = before if self._at_fork is None else add((self._at_fork, before))
        self._branch, self._before, self._last_step = branch, Totals(), self._clock.now()

    def event(self, kind: str, data: dict[str, Any]) -> None:
        self._store.events.write(self._clock.wall(), kind, data)

    def evaluation(self, version: Version, result: dict[str, Any]) -> None:
        record, at = {"number": version.number, **result}, self._clock.wall()
        self._store.metrics.write(version.branch, version.number, at, record, kind="eval")
        self._listeners.evaluation(Evaluation.of(MetricRow(0, version.branch, version.number, at, record)))

    def batch(self, step: TrainedStep) -> None:
        """The batch was trained and its version published."""
        number, record = step.batch + 1, self._record(step)
        with self._store.transaction():
            self._store.checkpoints.record_version(self._branch, number, self._clock.wall())
            self._store.metrics.write(self._branch, number, self._clock.wall(), record.to_json(), kind="batch")
        self._listeners.batch(record)

    def progress(self) -> None:
        """Leave this process's totals up to now: what it does next may be its end."""
        self._store.metrics.replace(
            self._branch, self._flow.batch, self._clock.wall(), self.totals().to_json(), kind="totals"
        )

    def totals(self) -> Totals:
        """Of this process on its present branch, up to now."""
        now = self._totals()
        return now if self._at_fork is None else since(now, self._at_fork)

    def _totals(self) -> Totals:
        engine = self._engines.stats()
        return Totals(
            elapsed_s=self._clock.now() - self._began,
            generated_tokens=engine.generated_tokens,
            generated_samples=self._tally.samples,
            failed_samples=dict(self._tally.failures),
            generate_s=engine.busy_s,
            train_s=self._train_s,
            swap_stall_s=engine.swap_stall_s,
            trainer_s=self._time.trainer_s(),
            engines_s=self._time.engines_s(),
            busy_s=self._time.busy_s(),
            device_s=self._time.device_s(),
            lent_s=self._time.lent_s(),
            mfu_s=self._operations / self.rate if self.rate else 0.0,
            wait_s=self._waits.totals(),
            failure_words=dict(self._tally.failure_words),
            drop_words=dict(self._flow.drop_words),
            reward_calls=dict(self._reward_times.counts),
        )

    def _record(self, step: TrainedStep) -> BatchRecord:
        now = self._clock.now()
        step_s, self._last_step = now - self._last_step, now
        self._train_s += step.train_s
        stats, reports = step.stats, step.reports
        operations = sum(report.operations for report in reports)
        self._operations += operations
        before, self._before = self._before, self.totals()
        lately = since(self._before, before)
        tokens, begun_tokens = _tokens(reports), _tokens(step.begun)
        # A batch in which only the critic learns has none.
        made = [report for report in reports if report.denominator] or reports
        sums = Counter[str]()
        for report in reports:
            sums.update(report.stats)
        gap = _gap(step)
        return BatchRecord(
            batch=step.batch,
            branch=self._branch,
            groups=step.groups,
            samples=stats.samples,
            reward_mean=stats.reward / stats.samples,
            episode_reward_mean=stats.episode_reward_mean,
            response_tokens_mean=stats.response_tokens / stats.samples,
            trained_tokens=sum(report.trained_tokens for report in step.epochs[0]),
            forwarded_tokens=sum(report.forwarded_tokens for report in reports),
            padding_tokens=sum(report.padding_tokens for report in reports),
            rows_read_bytes=sum(report.read_bytes for report in reports),
            rows_told_bytes=sum(report.told_bytes for report in reports),
            masked_tokens=stats.masked_tokens,
            lost_branch_tokens=stats.lost_branch_tokens,
            late_groups=step.late_groups,
            staleness=dict(sorted(stats.staleness.items())),
            loss=sum(report.loss for report in made) / len(made),
            grad_norm=largest(report.grad_norm for report in reports),
            lr=reports[-1].lr,
            skipped=any(report.skipped for report in made),
            drift_mean_abs=sum(report.stats.get("drift_abs", 0.0) for report in step.begun) / begun_tokens,
            drift_max_abs=largest((report.maxima.get("drift_abs", 0.0) for report in step.begun), default=0.0),
            clip_fraction=sums["clipped"] / tokens,
            behavior_weight_mean=sums["behavior_weight"] / tokens,
            approx_kl=sums["approx_kl"] / tokens,
            step_s=step_s,
            mfu=_share(operations, step.train_s * self.rate),
            queue_groups=self._flow.ready_groups,
            running_groups=self._flow.running_groups,
            totals=self._before,
            mismatch_tokens=gap.tokens,
            mismatch_mean_abs=gap.sum_abs / gap.tokens if gap.tokens else None,
            mismatch_max_abs=gap.max_abs if gap.tokens else None,
            behavior_outside_share=sums["behavior_outside"] / tokens,
            effective_token_share=_effective_share(sums["behavior_weight"], sums["behavior_weight_squared"], tokens),
            kl_coefficient=self._kl_coefficient(step.batch),
            reference_kl=sums["reference_kl"] / tokens if "reference_kl" in sums else None,
            entropy=sums["whole_entropy"] / tokens if "whole_entropy" in sums else None,
            kept_mass=sums["kept_mass"] / tokens if "kept_mass" in sums else None,
            truncated_samples=stats.truncated_samples,
            reward_terms=stats.terms,
            reward_sources=_by_source(step) if self._has_sources else {},
            reward_min=stats.reward_range[0],
            reward_max=stats.reward_range[1],
            equal_groups=stats.equal_groups,
            reward_call_p50_s=quantile(lately.reward_calls, 0.5),
            reward_call_p99_s=quantile(lately.reward_calls, 0.99),
            failed_samples={kind: count for kind, count in lately.failed_samples.items() if count},
            dropped_groups=dict(step.dropped),
            own={name.removeprefix(OWN): total / tokens for name, total in sums.items() if name.startswith(OWN)},
            critic_loss=sum(report.loss for report in step.critic) / len(step.critic) if step.critic else None,
            epochs=tuple(_epoch(made) for epoch in step.epochs if (made := [one for one in epoch if one.denominator])),
            warm_up=step.warm_up,
            only_recorded=step.only_recorded,
        )


def _by_source(step: TrainedStep) -> dict[str, float]:
    rewards: dict[str, list[float]] = {}
    for trained in step.rows:
        name = source_of(trained.row.header.prompt_id)
        rewards.setdefault(name, []).append(float(trained.row.columns["reward"]))
    return {name: sum(values) / len(values) for name, values in sorted(rewards.items())}


def _epoch(reports: Sequence[StepReport]) -> EpochRecord:
    tokens = _tokens(reports)

    def mean(name: str) -> float:
        return sum(report.stats.get(name, 0.0) for report in reports) / tokens

    step_kl = mean("step_kl") if all("step_kl" in report.stats for report in reports) else None
    return EpochRecord(len(reports), mean("approx_kl"), step_kl, mean("clipped"))


def _tokens(reports: Sequence[StepReport]) -> int:
    """To divide sums by."""
    return max(sum(report.trained_tokens for report in reports), 1)


def _gap(step: TrainedStep) -> Gap:
    """Over the fresh tokens of the batch, and those that were drawn for it."""
    gap = step.gap or Gap(0, 0.0, 0.0)
    for report in step.begun:
        gap = Gap(
            tokens=gap.tokens + round(report.stats.get("mismatch_tokens", 0.0)),
            sum_abs=gap.sum_abs + report.stats.get("mismatch_abs", 0.0),
            max_abs=largest((gap.max_abs, report.maxima.get("mismatch_abs", 0.0))),
        )
    return gap


def _effective_share(weight: float, weight_squared: float, tokens: float) -> float | None:
    """None where no token has any weight."""
    return effective_sample_size(weight, weight_squared) / tokens if weight_squared else None


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
