"""Which way of computing a product is the faster one on this machine: measured once, and kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch

from headrace.config.values.dtypes import dtype_name
from headrace.models.machine_measurements import cache_folder, kept_measurement, one_thread
from headrace.models.products import HAS_ONEDNN, packed, product
from headrace.runtime.clock import processor_seconds

_WIDTH = 512
_FEW, _MANY = (4, 16, 64), (128, 512)
"""Rows: of decode steps, and of prompts and micro-batches."""
_REPEATED = 128
"""Rows that each way is given in one go, in as many products as that takes."""
_TRIES = 6
_GAIN = 1.1
"""So many times as fast, or it stays with `torch.mm`."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ProductChoice:
    """How many times as fast as `torch.mm` oneDNN is, by the geometric mean over several numbers of rows."""

    dense_gain: float
    """With a matrix as it is, for many rows."""
    packed_gain: float
    """With a packed one, for few rows and many."""

    @property
    def dense(self) -> bool:
        return self.dense_gain >= _GAIN

    @property
    def packed(self) -> bool:
        return self.packed_gain >= _GAIN


NEITHER = ProductChoice(0.0, 0.0)
"""Where there is no oneDNN, or nowhere to keep what was measured."""


def choice_for(device: torch.device, dtype: torch.dtype) -> ProductChoice:
    """Where `device` is this machine's CPU. Blocking: half a second or so, the first time on a machine."""
    return _on_cpu(dtype) if device.type == "cpu" and HAS_ONEDNN else NEITHER


def dense_is_faster(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN is, with a matrix as it is. In bfloat16 `torch.mm` takes it too."""
    return dtype == torch.float32 and choice_for(device, dtype).dense


@cache
def _on_cpu(dtype: torch.dtype) -> ProductChoice:
    return kept_choice(cache_folder(), dtype, measured)


def kept_choice(
    folder: Path | None, dtype: torch.dtype, measure: Callable[[torch.dtype], ProductChoice]
) -> ProductChoice:
    """See `kept_measurement`; `NEITHER` where it keeps nothing."""
    name = f"products-{dtype_name(dtype)}-{_FORMAT}"
    found = kept_measurement(folder, name, ("dense_gain", "packed_gain"), lambda: asdict(measure(dtype)))
    return NEITHER if found is None else ProductChoice(*found)


@torch.no_grad()
def measured(dtype: torch.dtype) -> ProductChoice:
    """The ways in turn, each at its best."""
    with one_thread():
        return _measured(dtype)


def _measured(dtype: torch.dtype) -> ProductChoice:
    own = torch.Generator().manual_seed(0)  # no model's draws depend on it
    weight = torch.randn(_WIDTH, _WIDTH, generator=own).to(dtype)
    layouts = {
        "mm": weight.t().contiguous(),
        "dense": weight,
        "packed": packed(weight),
    }
    inputs = {rows: torch.randn(rows, _WIDTH, generator=own).to(dtype) for rows in (*_FEW, *_MANY)}
    best = {(rows, way): float("inf") for rows in inputs for way in layouts}
    for _ in range(1 + _TRIES):  # the first one finds its kernels
        for rows, way in best:
            best[rows, way] = min(best[rows, way], _seconds(inputs[rows], way, layouts[way]))
    dense = [best[rows, "mm"] / best[rows, "dense"] for rows in _MANY]
    return ProductChoice(_mean(dense), _mean([best[rows, "mm"] / best[rows, "packed"] for rows in inputs]))


def _seconds(x: torch.Tensor, way: str, weight: torch.Tensor) -> float:
    began = processor_seconds()
    for _ in range(max(1, _REPEATED // len(x))):
        torch.mm(x, weight) if way == "mm" else product(x, weight)
    return processor_seconds() - began


def _mean(gains: list[float]) -> float:
    """Geometric."""
    return float(torch.tensor(gains).log().mean().exp())
