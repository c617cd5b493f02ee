"""What an offline trainer has recorded of itself, at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headrace.config.kinds import KINDS
from headrace.config.pairs import DPOConfig, RMConfig
from headrace.config.reading.config_text import values_of
from headrace.config.sft import SFTConfig
from headrace.observe.failure import error_of
from headrace.observe.offline.record import EVALUATION, STEP, HeldOutRows, OfflineStep
from headrace.observe.untrusted import visible_in, visible_line
from headrace.store import EventRow, MetricRow, RunReader

OfflineConfig = SFTConfig | RMConfig | DPOConfig


@dataclass(frozen=True, slots=True)
class OfflineRun:
    name: str
    """The last part of its folder."""
    kind: str
    """The command: sft, rm or dpo."""
    status: str
    """running, finished, stopped, failed; or killed: it calls itself running, but no process owns it."""
    config: OfflineConfig
    config_sha256: str
    branch: int
    planned_steps: int | None
    """None if the trainer has not said."""
    steps: tuple[OfflineStep, ...]
    """Without those that a resumed run went back behind."""
    evaluations: tuple[HeldOutRows, ...]
    events: tuple[EventRow, ...] = field(default=(), repr=False)

    @property
    def error(self) -> str | None:
        """Why it failed."""
        return error_of(self.status, self.events)

    @property
    def number(self) -> int:
        """Steps that are done."""
        return self.steps[-1].step if self.steps else 0

    @property
    def wall_s(self) -> float:
        """Of training, all processes together."""
        return self.steps[-1].elapsed_s if self.steps else 0.0


class OfflineWatcher:
    """Reads the record again and again, each time only what is new."""

    def __init__(self, reader: RunReader) -> None:
        """Raises KeyError for a run of `headrace train`."""
        self._reader = reader
        kind = KINDS[reader.kind]
        config = kind.model_validate(values_of(reader.config_yaml))
        assert isinstance(config, SFTConfig | RMConfig | DPOConfig)
        self._config: OfflineConfig = config
        self._branch = -1
        self._steps: list[OfflineStep] = []
        self._evaluations: list[HeldOutRows] = []
        self._last = {STEP: 0, EVALUATION: 0}
        self._events: list[EventRow] = []

    def read(self) -> OfflineRun:
        branch, _ = self._reader.version() or (0, 0)
        if branch != self._branch:
            self._branch, self._steps, self._evaluations = branch, [], []
            self._last = {STEP: 0, EVALUATION: 0}
        self._steps += [OfflineStep.from_json(row.record) for row in self._fresh(STEP)]
        self._evaluations += [HeldOutRows.from_json(row.record) for row in self._fresh(EVALUATION)]
        fresh = self._reader.events.read(self._events[-1].id if self._events else 0)
        self._events += [replace(event, data=visible_in(event.data)) for event in fresh]
        status = self._reader.status()
        started = [event.data for event in self._events if event.kind == "started"]
        return OfflineRun(
            name=visible_line(self._reader.path.resolve().name),
            kind=self._reader.kind,
            status="killed" if status.name == "running" and not status.alive else status.name,
            config=self._config,
            config_sha256=self._reader.config_sha256,
            branch=branch,
            planned_steps=started[-1]["steps"] if started else None,
            steps=tuple(self._steps),
            evaluations=tuple(self._evaluations),
            events=tuple(self._events),
        )

    def _fresh(self, kind: str) -> list[MetricRow]:
        rows = self._reader.metrics.read(kind, self._last[kind])
        self._last[kind] = max([self._last[kind], *(row.id for row in rows)])
        return rows
