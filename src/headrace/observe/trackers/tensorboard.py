"""Event files of TensorBoard, written by its own package, without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from headrace.observe.trackers.folders import refuse_others
from headrace.observe.trackers.protocol import Cell, TrackedRun


class TensorboardEvents:
    """What a restore took back is purged: a session that starts at a step tells TensorBoard to forget what is there
    from that step on, and it does so when it reads the files."""

    def __init__(self, run: TrackedRun, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_others(run, folder, "events.out.tfevents.*")
        self._folder = folder
        self._writer = EventFileWriter(str(folder))
        self._last_at = 0.0
        if run.id is None:
            self._text("parameters", 0, run.parameters)

    @property
    def id(self) -> str:
        return str(self._folder)

    def rewind(self, step: int) -> None:
        self._writer.add_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def batch(self, step: int, at: float, values: Mapping[str, float]) -> None:
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._last_at = at
        self._writer.add_event(Event(wall_time=at, step=step, summary=Summary(value=scalars)))

    def evaluation(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self.batch(step, at, values)

    def samples(self, step: int, at: float, rows: Sequence[Mapping[str, Cell]]) -> None:
        self._last_at = at
        self._text("samples", step, rows)

    def flush(self) -> None:
        self._writer.flush()

    def close(self, status: str, summary: Mapping[str, Any]) -> None:
        self._text("summary", int(summary.get("version", 0)), summary)
        self._writer.close()

    def _text(self, tag: str, step: int, values: object) -> None:
        """As JSON in a block of code: TensorBoard takes text for Markdown."""
        lines = json.dumps(values, indent=2, ensure_ascii=False, default=str).splitlines()
        shown = "\n".join(f"    {line}" for line in lines)
        value = Summary.Value(
            tag=tag,
            metadata=create_summary_metadata(display_name=tag, description=""),
            tensor=make_tensor_proto(np.array([shown.encode()], dtype=object)),
        )
        self._writer.add_event(Event(wall_time=self._last_at, step=step, summary=Summary(value=[value])))
