"""Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import wandb

from headrace.config.track import PROJECT, WandbTracker
from headrace.observe.trackers.dotted import flat
from headrace.observe.trackers.protocol import Cell, TrackedRun

STEP = "batches"
"""The metric that all others are drawn over: W&B's own step only grows, and drops what comes later for a smaller one,
as an evaluation that took a while."""


class WandbRun:
    """A run of W&B cannot forget: what a restore took back stays, on the branch that `run/branch` tells, and what is
    trained again at its step comes after it. The value that counts, as in tables, is the later one."""

    def __init__(self, run: TrackedRun, section: WandbTracker) -> None:
        self._run = wandb.init(
            id=run.id or run.key,
            resume=None if run.id is None else "allow",
            project=section.project or os.environ.get("WANDB_PROJECT") or PROJECT,
            entity=section.entity,
            name=section.name or run.name,
            group=section.group,
            tags=section.tags or None,
            mode=section.mode,
            dir=os.environ.get("WANDB_DIR") or str(run.folder),
            config=dict(run.parameters),
            settings=wandb.Settings(console="off", x_disable_stats=True, disable_code=True, disable_git=True),
        )
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    @property
    def id(self) -> str:
        return str(self._run.id)

    def rewind(self, step: int) -> None:
        pass

    def batch(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self._run.log({STEP: step, **values})

    def evaluation(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self.batch(step, at, values)

    def samples(self, step: int, at: float, rows: Sequence[Mapping[str, Cell]]) -> None:
        if rows:
            columns = list(rows[0])
            table = wandb.Table(columns=columns, data=[[row[name] for name in columns] for row in rows])
            self._run.log({STEP: step, "samples": table})

    def flush(self) -> None:
        """Nothing to do: a process of W&B's own has what was logged, and outlives this one."""

    def close(self, status: str, summary: Mapping[str, Any]) -> None:
        self._run.summary.update(flat({"summary": {**summary, "status": status}}, "/"))
        self._run.finish(exit_code=1 if status in ("failed", "killed") else 0)
