"""What a run has recorded of itself, at one moment: what every view, and the summary, are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

from headrace.config.evaluation import PLAIN
from headrace.config.reading.config_text import values_of
from headrace.config.train import TrainConfig
from headrace.observe import totals
from headrace.observe.alarms import RunSoFar
from headrace.observe.failure import error_of
from headrace.observe.record import BatchRecord, Totals
from headrace.observe.untrusted import visible_in, visible_line
from headrace.store import Best, Counts, EventRow, MetricRow, RunReader
from headrace.store.records import MetricsReader

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of one metric of an evaluation."""

    value: float | None
    """None if no prompt tells it."""
    stderr: float | None
    """Standard error over prompts; None of fewer than two."""
    prompts: int
    """That it is a mean of."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The prompts of a held-out set, answered by one version."""

    branch: int
    number: int
    score: float | None
    """The set's first metric, which is the mean reward unless the config says another; None if no answer could be
    scored."""
    response_tokens_mean: float
    prompts: int
    samples: tuple[Mapping[str, Any], ...] = ()
    """The first few: prompt, response, reward."""
    failed: int = 0
    """Answers without a score."""
    set: str = PLAIN
    """Its name."""
    drawn: int | None = None
    """Answers, failed ones included; None in older records."""
    metrics: Mapping[str, Estimate] = field(default_factory=dict)
    """By name, the score's first; none in older records."""
    seconds: float | None = None
    versions_behind: int | None = None
    """Versions that were newer than the evaluated one when it ended: the engine was pinned meanwhile."""

    @staticmethod
    def of(row: MetricRow) -> Evaluation:
        record = row.record
        return Evaluation(
            branch=row.branch,
            number=row.number,
            score=record["score"] if "score" in record else record.get("accuracy", record.get("reward_mean")),
            response_tokens_mean=record["response_tokens_mean"],
            prompts=record["prompts"],
            samples=tuple(record.get("samples", ())),
            failed=record.get("failed", 0),
            set=record.get("set", PLAIN),
            drawn=record.get("drawn"),
            metrics={name: Estimate(**found) for name, found in record.get("metrics", {}).items()},
            seconds=record.get("seconds"),
            versions_behind=record.get("versions_behind"),
        )

    @property
    def label(self) -> str:
        """What its score is, as `eval` or `gsm pass@1`."""
        first = next(iter(self.metrics), "mean")
        return self.set if first == "mean" else f"{self.set} {first}"


def by_set(evaluations: Iterable[Evaluation]) -> dict[str, tuple[Evaluation, ...]]:
    """By the name of the set, the plain one first."""
    found: dict[str, list[Evaluation]] = {}
    for evaluation in sorted(evaluations, key=lambda each: each.set != PLAIN):
        found.setdefault(evaluation.set, []).append(evaluation)
    return {name: tuple(each) for name, each in found.items()}


@dataclass(frozen=True, slots=True)
class RunRecord:
    name: str
    """The last part of the run's folder."""
    status: str
    """running, finished, stopped, failed; or killed: it calls itself running, but no process owns it."""
    config: TrainConfig
    config_sha256: str
    branch: int
    number: int
    """Of the newest version."""
    planned_batches: int | None
    """Batches that the run will train; None if it has not said."""
    ahead: int | None
    """Most groups that run or wait for a batch; None if the run has not said."""
    device: str
    """Of the models, as `cpu` or `cuda`; as configured if the run has not said."""
    counts: Counts
    batches: tuple[BatchRecord, ...]
    """By number; without those that a restore took back."""
    evaluations: tuple[Evaluation, ...]
    processes: Mapping[int, Totals]
    """The last totals of each process of the run, by its branch; work that a restore took back included."""
    events: tuple[EventRow, ...] = field(default=(), repr=False)
    journal_bytes: int = 0
    """Of finished groups, on disk now."""
    best: Best | None = None
    """The checkpoint that is kept as the best; None if none is."""

    @property
    def error(self) -> str | None:
        """Why it failed."""
        return error_of(self.status, self.events)

    @property
    def sets(self) -> dict[str, tuple[Evaluation, ...]]:
        """Evaluations by held-out set, the plain one first."""
        return by_set(self.evaluations)

    @property
    def so_far(self) -> RunSoFar:
        """What alarms look at."""
        return RunSoFar(
            self.batches,
            takes_turns=self.config.async_.in_order or self.config.runtime.turns,
            shares_processors=not self.device.startswith("cuda"),
        )

    @property
    def totals(self) -> Totals:
        """Of all processes of the run."""
        return totals.add(self.processes.values())


@lru_cache(maxsize=4)
def _config_of(text: str) -> TrainConfig:
    return TrainConfig.model_validate(values_of(text))


class _Newest:
    """The last record of a kind on every branch."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._upto = 0
        """The newest record that was read."""
        self._rows: dict[int, MetricRow] = {}

    def read(self, metrics: MetricsReader) -> Mapping[int, Mapping[str, Any]]:
        """By branch, in rising order."""
        fresh = metrics.newest_of_branches(self._kind, self._upto)
        self._upto = _last_id(fresh, self._upto)
        self._rows |= {row.branch: row for row in fresh}
        return {branch: self._rows[branch].record for branch in sorted(self._rows)}


class RunWatcher:
    """Reads a run's record again and again, each time only what is new. Words of others in it are as `visible` shows
    them, for every view.

    `live` gives (branch, totals) of the process that runs, where it is this one: fresher than its last
    record.
    """

    def __init__(self, reader: RunReader, live: Callable[[], tuple[int, Totals]] | None = None) -> None:
        self._reader = reader
        self._live = live
        self._config = _config_of(reader.config_yaml)
        self._config_sha256 = reader.config_sha256
        self._branch = -1
        self._begin()
        self._events: list[EventRow] = []
        self._last_batches, self._last_totals = _Newest("batch"), _Newest("totals")

    def _begin(self) -> None:
        self._batches: list[BatchRecord] = []
        self._evaluations: list[Evaluation] = []
        self._batches_upto = self._evaluations_upto = 0
        """The newest records that were read."""

    def read(self) -> RunRecord:
        branch, number = self._reader.version() or (0, 0)
        if branch != self._branch:
            # A restore takes versions back: what was read of them no longer counts.
            self._branch = branch
            self._begin()
        batches = self._reader.metrics.read("batch", self._batches_upto)
        self._batches += [BatchRecord.from_json(visible_in(row.record)) for row in batches]
        self._batches_upto = _last_id(batches, self._batches_upto)
        evaluations = self._reader.metrics.read("eval", self._evaluations_upto)
        self._evaluations += [Evaluation.of(replace(row, record=visible_in(row.record))) for row in evaluations]
        self._evaluations_upto = _last_id(evaluations, self._evaluations_upto)
        fresh_events = self._reader.events.read(self._events[-1].id if self._events else 0)
        self._events += [replace(event, data=visible_in(event.data)) for event in fresh_events]
        status = self._reader.status()
        return RunRecord(
            name=visible_line(self._reader.path.resolve().name),
            status="killed" if status.name == "running" and not status.alive else status.name,
            config=self._config,
            config_sha256=self._config_sha256,
            branch=branch,
            number=number,
            planned_batches=self._said("batches", self._config.trainer.batches),
            ahead=self._said("ahead", self._config.async_.ahead),
            device=self._said("device", self._config.model.device),
            counts=_shown(self._reader.counts()),
            batches=tuple(self._batches),
            evaluations=tuple(self._evaluations),
            processes=self._processes(),
            events=tuple(self._events),
            journal_bytes=self._reader.journal_bytes(),
            best=self._reader.best(),
        )

    def _said(self, what: str, configured: T) -> T:
        """What the newest process of the run said when it started."""
        said = [event.data[what] for event in self._events if event.kind == "started" and what in event.data]
        return said[-1] if said else configured

    def _processes(self) -> dict[int, Totals]:
        metrics = self._reader.metrics
        batches = self._last_batches.read(metrics)
        latest = {branch: Totals(**visible_in(record["totals"])) for branch, record in batches.items()}
        for branch, record in self._last_totals.read(metrics).items():
            left = Totals(**visible_in(record))
            if branch not in latest or left.elapsed_s >= latest[branch].elapsed_s:
                latest[branch] = left
        if self._live is not None:
            branch, now = self._live()
            latest[branch] = Totals(**visible_in(asdict(now)))
        return latest


def _shown(counts: Counts) -> Counts:
    return replace(counts, dropped=visible_in(counts.dropped))


def _last_id(rows: Iterable[MetricRow], before: int) -> int:
    return max((row.id for row in rows), default=before)
