"""Writes an offline trainer's record, and keeps its view and its trackers going meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import fields
from typing import Any, Protocol

from headrace.config import config_sha256, dump_config
from headrace.config.kinds import command_of
from headrace.config.track import sections
from headrace.observe.failure import FAILED, words_of
from headrace.observe.last_steps import LastSteps
from headrace.observe.offline.listeners import NOBODY, OfflineListeners
from headrace.observe.offline.record import EVALUATION, STEP, HeldOutRows, Measured, OfflineStep
from headrace.observe.offline.run_record import OfflineConfig, OfflineRun, OfflineWatcher
from headrace.offline.tracking import tracked
from headrace.runtime.inline import SystemClock
from headrace.store import OfflineStore, RunReader, StoreError
from headrace.store.media.lock import RunLock
from headrace.training.protocol import StepReport
from headrace.training.sums import BatchSums

SHOWN_S = 1.0
"""Between two looks of the view, in seconds of training."""
PAIRS = "pairs"


class OfflineView(Protocol):
    def open(self) -> None: ...

    def show(self, run: OfflineRun) -> None: ...

    def close(self) -> None: ...


class OfflineRecorder:
    def __init__(
        self, store: OfflineStore, watcher: OfflineWatcher, view: OfflineView | None, listeners: OfflineListeners
    ) -> None:
        self._store = store
        self._watcher = watcher
        self._view = view
        self._listeners = listeners
        self._clock = SystemClock()
        self._shown_s = 0.0
        self._status = "failed"

    @property
    def branch(self) -> int:
        return self._store.branch

    def started(self, steps: int, done: int) -> None:
        """`steps` are to be done in all, and `done` are."""
        self._store.events.write(self._clock.wall(), "started", {"steps": steps, "done": done})

    def step(self, number: int, rows: int, report: StepReport, elapsed_s: float) -> None:
        """Step `number` is done, `elapsed_s` after the start of training."""
        record = OfflineStep(
            step=number,
            branch=self.branch,
            rows=rows,
            measured=measured(report.loss, report.stats),
            grad_norm=report.grad_norm,
            lr=report.lr,
            skipped=report.skipped,
            trained_tokens=report.trained_tokens,
            forwarded_tokens=report.forwarded_tokens,
            padding_tokens=report.padding_tokens,
            elapsed_s=elapsed_s,
        )
        self._store.write(STEP, number, self._clock.wall(), record.to_json())
        if elapsed_s >= self._shown_s + SHOWN_S:
            self._shown_s = elapsed_s
            self._show()
        self._listeners.step(record)

    def evaluation(self, number: int, rows: int, found: Measured, seconds: float) -> None:
        """The held-out rows were measured under the weights after `number` steps."""
        record = HeldOutRows(number, self.branch, rows, found, seconds)
        self._store.write(EVALUATION, number, self._clock.wall(), record.to_json())
        self._show()
        self._listeners.evaluation(record)

    def is_evaluated(self, number: int) -> bool:
        """Whether there is a record of an evaluation after `number` steps."""
        return any(row.number == number for row in self._store.metrics.read(EVALUATION))

    def end(self, status: str | None = None) -> None:
        """How the trainer has ended; unless it has said so, it failed."""
        self._status = status or self._status
        self._store.set_status(self._status)

    def read(self) -> OfflineRun:
        return self._watcher.read()

    def _show(self) -> None:
        if self._view is not None:
            self._view.show(self._watcher.read())


@contextmanager
def recording(
    config: OfflineConfig, lock: RunLock, view: OfflineView | None, listeners: OfflineListeners = NOBODY, *, done: int
) -> Iterator[OfflineRecorder]:
    """In the folder that `lock` is of. `done`: steps of the run that is gone on with, 0 of a new one. Raises what
    `OfflineStore` does."""
    clock = SystemClock()
    store = OfflineStore(
        lock,
        kind=command_of(config),
        config_yaml=dump_config(config),
        config_sha256=config_sha256(config),
        now=clock.wall(),
        resumed_at=done,
    )

    def event(kind: str, data: dict[str, Any]) -> None:
        store.events.write(clock.wall(), kind, data)

    ended_by: BaseException | None = None
    with closing(store), RunReader(lock.folder) as reader:
        recorder = OfflineRecorder(store, OfflineWatcher(reader), view, listeners)
        with tracked(sections(config.track), lock.folder, event):
            if view is not None:
                view.open()
            try:
                yield recorder
            except BaseException as error:
                with suppress(StoreError, OSError):  # it may be the record that failed
                    event(FAILED, {"message": words_of(error)})
                ended_by = error
                raise
            finally:
                last = LastSteps(ended_by)
                with last.step("its status"):
                    recorder.end()
                if view is not None:
                    with last.step("its last view"):
                        view.show(recorder.read())
                    with last.step("the end of its view"):
                        view.close()
                last.done()


def measured(loss: float, stats: Mapping[str, float]) -> Measured:
    """Means from sums over pairs, or over tokens."""
    pairs, tokens = stats.get(PAIRS), stats.get("tokens")
    names = [field.name for field in fields(Measured) if field.name != "loss"]
    if pairs:
        return Measured(loss, **{name: stats[name] / pairs for name in names if name in stats})
    if tokens and "accuracy" in stats:
        return Measured(loss, accuracy=stats["accuracy"] / tokens)
    return Measured(loss)


def over(sums: BatchSums) -> Measured:
    """Of a held-out set."""
    denominator = float(sums.denominator)
    loss = float(sums.numerator) / denominator if denominator else 0.0
    return measured(loss, {name: float(value) for name, value in sums.stats.items()})
