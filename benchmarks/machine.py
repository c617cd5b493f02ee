"""Where a number was measured, and where it is kept."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def describe_machine() -> dict[str, Any]:
    """Processor, cores, and the versions that matter."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    packages = {}
    for name in ("torch", "transformers", "numpy"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **packages,
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def save(name: str, result: dict[str, Any]) -> Path:
    """Write `results/NAME.json`, with the machine; `results/NAME_amd.json` and so on where that file has the figures of
    another maker's processor."""
    RESULTS.mkdir(exist_ok=True)
    machine = describe_machine()
    path = RESULTS / f"{name}.json"
    maker = _maker(machine)
    if path.exists() and _maker(json.loads(path.read_text())["machine"]) != maker:
        path = RESULTS / f"{name}_{maker}.json"
    path.write_text(json.dumps({"machine": machine, **result}, indent=1) + "\n")
    return path


def _maker(machine: dict[str, Any]) -> str:
    """Of the processor."""
    words = str(machine["processor"]).lower().replace("(", " ").split()
    return words[0] if words else "unknown"
