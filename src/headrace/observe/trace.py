"""What computed when, in the format that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from headrace.store.media.files import LOCAL, Files, write_whole


class Spanned(Protocol):
    """One piece of work; `headrace.runtime.inline.Span` is one."""

    @property
    def lane(self) -> str: ...
    @property
    def thread(self) -> str: ...
    @property
    def begin(self) -> float: ...
    @property
    def end(self) -> float: ...


def write_trace(path: Path, spans: Iterable[Spanned], files: Files = LOCAL) -> None:
    """One row a lane, times in microseconds from the first. Whole or not at all. Raises DiskFull."""
    spans = sorted(spans, key=lambda span: span.begin)
    lanes = {lane: row for row, lane in enumerate(dict.fromkeys(span.lane for span in spans))}
    zero = spans[0].begin if spans else 0.0
    events: list[dict[str, object]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": lane}} for lane, row in lanes.items()
    ]
    events += [
        {
            "name": span.lane,
            "ph": "X",
            "pid": 0,
            "tid": lanes[span.lane],
            "ts": round((span.begin - zero) * 1e6),
            "dur": round((span.end - span.begin) * 1e6),
            "args": {"thread": span.thread},
        }
        for span in spans
    ]
    write_whole(path, json.dumps({"traceEvents": events}).encode(), files)
