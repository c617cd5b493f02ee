"""The model in training, as the loop of the offline trainers asks it: in this process, or by ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.offline.trained.of_pairs import REFERENCE
from headrace.offline.trained.trained_model import TrainedModel
from headrace.offline.units import Unit, micro_batches, rows_of
from headrace.runtime.blocking import WatchedLane
from headrace.store.media.files import Digest
from headrace.training.merging import merged
from headrace.training.protocol import StepReport
from headrace.training.sums import BatchSums


class OfflineModel(Protocol):
    """Blocking."""

    def train(self, units: Sequence[Unit]) -> StepReport:
        """One optimiser step on them."""

    def measured(self, units: Sequence[Unit]) -> BatchSums:
        """What the loss, and all that is told of it, is on them, under the present weights."""

    def logprobs(self, units: Sequence[Unit]) -> list[list[NDArray[np.float32]]]:
        """Of each row [T] float32, under the present weights."""

    def save(self, path: Path) -> Mapping[str, Digest]:
        """Write what `Trainer.saved` has into the folder. What the files hold that a rank wrote alone, by their path
        there."""

    def load(self, path: Path) -> None:
        """See `Trainer.load`: also what ranks of another layout saved."""

    def export(self, path: Path) -> None:
        """See `TrainedModel.export`."""

    def close(self) -> None:
        """Nothing of it is left."""


class ModelHere:
    """Of this process alone. Implements `OfflineModel`. Each method raises Stuck where its work makes no progress."""

    def __init__(self, trained: TrainedModel, max_tokens: int, limits: Mapping[str, float]) -> None:
        """`max_tokens`: of a micro-batch. `limits`: see `Progress`."""
        self._trained = trained
        self._max_tokens = max_tokens
        self._lane = WatchedLane("trainer", limits)

    def train(self, units: Sequence[Unit]) -> StepReport:
        """See `OfflineModel.train`."""
        return self._lane.run(self._train, units)

    def measured(self, units: Sequence[Unit]) -> BatchSums:
        """See `OfflineModel.measured`."""
        return self._lane.run(self._measured, units)

    def logprobs(self, units: Sequence[Unit]) -> list[list[NDArray[np.float32]]]:
        """See `OfflineModel.logprobs`."""
        return self._lane.run(self._logprobs, units)

    def save(self, path: Path) -> Mapping[str, Digest]:
        """See `OfflineModel.save`."""
        return self._lane.run(self._save, path)

    def load(self, path: Path) -> None:
        """See `OfflineModel.load`."""
        self._lane.run(self._trained.trainer.load, path)

    def export(self, path: Path) -> None:
        """See `OfflineModel.export`."""
        self._lane.run(self._trained.export, path)

    def close(self) -> None:
        """See `OfflineModel.close`."""
        self._lane.close()

    def _save(self, path: Path) -> Mapping[str, Digest]:
        return self._trained.trainer.saved(copies=False).write(path).files

    def _train(self, units: Sequence[Unit]) -> StepReport:
        for places in micro_batches(units, self._max_tokens):
            self._trained.accumulate(rows_of(units[place] for place in places))
        return self._trained.trainer.step()

    def _measured(self, units: Sequence[Unit]) -> BatchSums:
        parts = micro_batches(units, self._max_tokens)
        return merged([self._trained.measured(rows_of(units[place] for place in places)) for places in parts])

    def _logprobs(self, units: Sequence[Unit]) -> list[list[NDArray[np.float32]]]:
        found: list[Any] = []
        for places in micro_batches(units, self._max_tokens):
            found += by_unit(self._trained.logprobs(rows_of(units[place] for place in places)), units, places)
        return found


def by_unit(of_rows: Sequence[Any], units: Sequence[Unit], places: Sequence[int]) -> list[list[Any]]:
    """What there is of the rows of the units at `places`, one after another, for each of these units."""
    rows = iter(of_rows)
    return [[next(rows) for _ in units[place]] for place in places]


def with_reference(model: OfflineModel, units: Sequence[Unit]) -> Sequence[Unit]:
    """With a column of their log-probs under the present weights."""
    return [
        [replace(row, columns={**row.columns, REFERENCE: own}) for row, own in zip(unit, of_rows, strict=True)]
        for unit, of_rows in zip(units, model.logprobs(units), strict=True)
    ]
