"""MLflow, by its client: on a server, or on a database of one's own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from headrace.config.track import MlflowTracker
from headrace.observe.trackers.dotted import flat
from headrace.observe.trackers.names import safe
from headrace.observe.trackers.protocol import Cell, TrackedRun

_LONGEST = 5000
"""Characters of a value; MLflow takes 6000 of a parameter, and 5000 of a tag."""
_METRICS, _PARAMETERS = 1000, 100
"""That MLflow takes in one call."""
_ENDS = {"finished": "FINISHED", "stopped": "KILLED", "killed": "KILLED", "failed": "FAILED"}


class MlflowRun:
    """MLflow keeps the whole history of a metric: what a restore took back stays in it, and what is trained again at
    its step stands beside it with a later time, and is what counts. A value that is logged twice stands there once."""

    def __init__(self, run: TrackedRun, section: MlflowTracker) -> None:
        self._client = MlflowClient(tracking_uri=section.uri)
        self._last = (0, 0)
        """Step and time of the last metric."""
        if run.id is not None:
            self._id = run.id
            self._client.update_run(self._id, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(section.experiment)
        experiment_id = (
            self._client.create_experiment(section.experiment) if experiment is None else experiment.experiment_id
        )
        self._id = self._client.create_run(experiment_id, run_name=section.name or run.name).info.run_id
        parameters = [Param(safe(key), str(value)[:_LONGEST]) for key, value in flat(run.parameters).items()]
        for begin in range(0, len(parameters), _PARAMETERS):
            self._client.log_batch(self._id, params=parameters[begin : begin + _PARAMETERS])

    @property
    def id(self) -> str:
        return self._id

    def rewind(self, step: int) -> None:
        pass

    def batch(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self._last = (step, round(at * 1000))
        self._log(values)

    def evaluation(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self.batch(step, at, values)

    def samples(self, step: int, at: float, rows: Sequence[Mapping[str, Cell]]) -> None:
        if rows:
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            self._client.log_table(self._id, columns, f"samples/{step}.json")

    def flush(self) -> None:
        """Nothing to do: what is logged is there when the call returns."""

    def close(self, status: str, summary: Mapping[str, Any]) -> None:
        values = {safe(name): value for name, value in flat({"summary": summary}, "/").items()}
        self._log({name: value for name, value in values.items() if isinstance(value, int | float)})
        texts = {name: value for name, value in values.items() if isinstance(value, str)}
        tags = [RunTag(name, value[:_LONGEST]) for name, value in {**texts, "status": status}.items()]
        self._client.log_batch(self._id, tags=tags)
        self._client.set_terminated(self._id, _ENDS.get(status, "FAILED"))

    def _log(self, values: Mapping[str, float]) -> None:
        step, at_ms = self._last
        metrics = [Metric(name, float(value), at_ms, step) for name, value in values.items() if not math.isinf(value)]
        for begin in range(0, len(metrics), _METRICS):
            self._client.log_batch(self._id, metrics=metrics[begin : begin + _METRICS])
