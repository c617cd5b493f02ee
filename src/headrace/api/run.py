"""A run's record, to be looked at in Python, while it goes or after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.api.errors import for_caller
from headrace.api.metrics import Metrics
from headrace.api.picture import Picture, picture_for_caller
from headrace.config import ConfigError, TrainConfig
from headrace.observe.record import BatchRecord
from headrace.observe.run_record import Evaluation, RunRecord, RunWatcher
from headrace.observe.summary import build_summary
from headrace.store import RunMissing, RunReader, RunStore, StoreError
from headrace.store.rollouts import ORDERS, Order, Query
from headrace.store.tables import TRAIN
from headrace.viewer.plot.curves import Axis

_STATUSES = ("completed", "truncated", "failed", "dropped")


class Run:
    """The run in a folder. Everything is read when it is asked for, so that a run that goes on can be watched."""

    def __init__(self, path: str | Path) -> None:
        """Raises RunMissing if there is none, ConfigError for that of an offline trainer."""
        self.path = Path(path)
        if not RunStore.exists(self.path):
            raise RunMissing(f"{self.path} holds no run; check the path")
        with RunReader(self.path) as reader:
            if reader.kind != TRAIN:
                raise ConfigError(f"{self.path} is of headrace {reader.kind}; it is a headrace.OfflineRun")

    def __repr__(self) -> str:
        record = self.record
        return f"<headrace run {self.path}: {record.status}, version {record.number}>"

    @property
    def record(self) -> RunRecord:
        """All that is recorded, at this moment."""
        with RunReader(self.path) as reader:
            return RunWatcher(reader).read()

    @property
    def config(self) -> TrainConfig:
        return self.record.config

    @property
    def status(self) -> str:
        """running, finished, stopped, failed, or killed."""
        return self.record.status

    @property
    def metrics(self) -> Metrics[BatchRecord]:
        """What was recorded of each batch."""
        return Metrics(self.record.batches, index="batch", called="batches")

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """Of the held-out prompts, in order: before, between and after."""
        return self.record.evaluations

    @property
    def summary(self) -> dict[str, Any]:
        """As in `summary.json`."""
        return build_summary(self.record)

    @property
    def model(self) -> Path | None:
        """Folder of the newest checkpoint's model, which `transformers` loads; None before the first checkpoint."""
        with RunReader(self.path) as reader:
            newest = max(reader.checkpoints().items(), default=(0, None))[1]
        return None if newest is None else self.path / "checkpoints" / newest / "model"

    def rollouts(
        self,
        *,
        batch: int | tuple[int | None, int | None] | None = None,
        prompt: str | None = None,
        status: str | None = None,
        grep: str | None = None,
        sort: Order = "batch",
        descending: bool = False,
        limit: int | None = None,
    ) -> list[dict[str, Any]]:
        """Samples that can still be read, each as `headrace rollouts --json` prints it.

        `batch`: one, or the first and the last. `status`: completed, truncated, failed or dropped. `grep`: a regular
        expression. Raises ConfigError for an order, a status or a limit that is none, StoreError for
        a pattern that is none.
        """
        if sort not in ORDERS:
            raise ConfigError(f"sort is {sort!r}; use {', '.join(ORDERS)}")
        if status is not None and status not in _STATUSES:
            raise ConfigError(f"status is {status!r}; use {', '.join(_STATUSES)}")
        if limit is not None and limit < 1:
            raise ConfigError(f"limit is {limit}; give 1 or more, or None for all")
        first, last = batch if isinstance(batch, tuple) else (batch, batch)
        from headrace.viewer.rollout_text import as_json
        from headrace.viewer.rollouts import find

        query = Query(
            first_batch=first,
            last_batch=last,
            prompt_id=prompt,
            statuses=None if status is None else (status,),
            pattern=grep,
            order=sort,
            descending=descending,
            limit=limit,
        )
        try:
            return [as_json(rollout) for rollout in find(self.path, query)]
        except StoreError as error:
            raise for_caller(error) from None

    def plot(
        self, path: str | Path | None = None, *, by: Axis = "batch", smooth: int = 1, compare: Sequence[Run] = ()
    ) -> Picture:
        """The run's curves, which a notebook shows; written to `path` too, if one is given that ends in .svg, .html or
        .png. `compare`: runs that are drawn beside it. Raises ConfigError where nothing is trained yet."""
        beside = [run.path for run in compare]
        return picture_for_caller(self.path, path, by=by, smooth=smooth, beside=beside)
