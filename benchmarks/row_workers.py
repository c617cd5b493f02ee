"""Workers of `ray_rows.py`: one makes rows, one fills a column, one takes all of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headrace.runtime.refs import Ref, near
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host


@dataclass(frozen=True, slots=True)
class RowSpec:
    numbers: int
    """float32 in a row."""


class RowWorker:
    kind: ClassVar[str] = "rows"
    types: ClassVar[WireTypes] = WireTypes({"row_spec": RowSpec})

    def __init__(self, spec: RowSpec, host: Host) -> None:
        self._numbers = spec.numbers
        self._host = host

    def make(self, count: int) -> tuple[list[Ref], float]:
        """And when they were put."""
        rows = np.random.default_rng(0).normal(size=(count, self._numbers)).astype(np.float32)
        refs = [self._host.refs.put({"x": row}) for row in rows]
        return refs, time.monotonic()

    def fill(self, xs: Sequence[Ref]) -> tuple[list[Ref], float]:
        """Refs to a column `y`, and when the rows were here."""
        refs = near(self._host.refs, set(xs))
        rows = [refs.get(ref)["x"] for ref in xs]
        came = time.monotonic()
        return [self._host.refs.put({"y": row[:1] * 2}) for row in rows], came

    def take(self, xs: Sequence[Ref], ys: Sequence[Ref]) -> float:
        refs = near(self._host.refs, {*xs, *ys})
        return float(sum(refs.get(x)["x"][0] + refs.get(y)["y"][0] for x, y in zip(xs, ys, strict=True)))
