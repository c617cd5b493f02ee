"""Which way of computing a product is the faster one on this machine: measured once, and kept.

What is measured is kept for each processor and version of torch, in a file of the user's cache folder, so that all
processes with one such folder, on processors of one kind, compute alike, to the bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch

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
    return kept_choice(_folder(), dtype, measured)


def kept_choice(
    folder: Path | None, dtype: torch.dtype, measure: Callable[[torch.dtype], ProductChoice]
) -> ProductChoice:
    """What is kept in `folder`, or else is measured and kept there: who comes first decides for all. None, or a folder
    that cannot be written: `NEITHER`, since each process would find something else."""
    if folder is None:
        return NEITHER
    path = folder / f"products-{_machine()}-{str(dtype).removeprefix('torch.')}.json"
    for _ in range(2):
        try:
            return _read(path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError):
            with suppress(OSError):
                path.unlink()
        try:
            _keep(path, asdict(measure(dtype)))
        except OSError:
            return NEITHER
    return NEITHER


def _read(path: Path) -> ProductChoice:
    found = json.loads(path.read_text())
    return ProductChoice(float(found["dense_gain"]), float(found["packed_gain"]))


def _keep(path: Path, found: Mapping[str, float]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".json") as file:
        json.dump({**found, "processor": _processor()[0], "torch": torch.__version__}, file)
        file.flush()
        with suppress(FileExistsError):
            os.link(file.name, path)


def _folder() -> Path | None:
    given = os.environ.get("XDG_CACHE_HOME")
    with suppress(RuntimeError):  # whoever has no home
        return (Path(given) if given else Path.home() / ".cache") / "headrace"
    return None


def _machine() -> str:
    """Of processor, torch and what is measured: 16 hexadecimal digits."""
    said = "\n".join((*_processor(), torch.__version__, str(_FORMAT)))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _processor() -> tuple[str, str]:
    """Its name, and what it can do."""
    names = ("model name", "flags")
    found = dict.fromkeys(names, "")
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines():
            name, _, value = line.partition(":")
            if name.strip() in names:
                found[name.strip()] = value.strip()
    return found["model name"] or platform.processor() or platform.machine(), found["flags"]


@torch.no_grad()
def measured(dtype: torch.dtype) -> ProductChoice:
    """The ways in turn, each at its best; by one thread and its own time, which a busy machine leaves alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measured(dtype)
    finally:
        torch.set_num_threads(threads)


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
