"""`headrace doctor`: what this machine and installation offer, and what is missing."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from headrace import __version__
from headrace.controller.building.threads import available_threads
from headrace.observe.trackers.packages import PACKAGES

_USES = {
    "math": "reward.function=math",
    "schema": "reward.function=json_schema",
    "plot": "headrace plot -o FILE.png",
    "datasets": "data in Parquet or Arrow, of the Hub, or packed as .zst",
    "renderers": "gateway.renderer",
    "cluster": "runtime.kind=ray",
    "megatron": "trainer.backend=megatron",
    **{tracker: f"track=[{tracker}]" for tracker in PACKAGES},
}
"""By extra. Those for work on Headrace itself are left out, and `jobs`, which is for the head of a cluster."""
_REQUIREMENT = re.compile(r"""(?P<package>[\w.-]+)[^;]*(?:;\s*extra\s*==\s*["'](?P<extra>[\w-]+)["'])?""")
_GIB = 2**30
_LOW_DISK_GIB, _LOW_MEMORY_GIB = 5, 2


def run(args: argparse.Namespace) -> int:
    faults = 0
    for good, name, text in _findings():
        faults += not good
        print(f"{'ok  ' if good else 'BAD '} {name:<14} {text}")
    print("all is well" if not faults else f"{faults} finding(s) to mend")
    return 1 if faults else 0


def _findings() -> Iterator[tuple[bool, str, str]]:
    """(is it good, what, in words)"""
    yield True, "headrace", __version__
    yield sys.version_info >= (3, 11), "python", f"{platform.python_version()} (3.11 or newer is needed)"
    yield sqlite3.sqlite_version_info >= (3, 24), "sqlite", f"{sqlite3.sqlite_version} (3.24 or newer is needed)"
    yield from _packages()
    yield from _machine()
    yield from _sandbox()
    yield from _torch()


def _packages() -> Iterator[tuple[bool, str, str]]:
    try:
        needed = requires("headrace") or []
    except PackageNotFoundError:
        yield False, "packages", "not looked at: Headrace runs from its source; in its folder: pip install -e ."
        return
    for requirement in needed:
        found = _REQUIREMENT.match(requirement)
        if found is None or found["extra"] not in (None, *_USES):
            continue
        package, extra = found["package"], found["extra"]
        try:
            yield True, package, version(package)
        except PackageNotFoundError:
            if extra is None:
                yield False, package, f"not installed: pip install '{requirement}'"
            else:
                yield True, package, f"not installed; needed for {_USES[extra]}: pip install 'headrace[{extra}]'"


def _machine() -> Iterator[tuple[bool, str, str]]:
    yield True, "processors", f"{available_threads(None)} usable by this process of {os.cpu_count()}"
    with suppress(ImportError):  # a finding of its own, above
        import psutil

        memory = psutil.virtual_memory()
        text = f"{memory.available / _GIB:.1f} GiB free of {memory.total / _GIB:.1f} GiB"
        yield memory.available > _LOW_MEMORY_GIB * _GIB, "memory", text
    free = shutil.disk_usage(Path.cwd()).free / _GIB
    yield free > _LOW_DISK_GIB, "disk", f"{free:.0f} GiB free here; a checkpoint takes 14 bytes a parameter"


def _sandbox() -> Iterator[tuple[bool, str, str]]:
    with suppress(ImportError):  # a finding of its own, above
        from headrace.rewards.promises import find_promises
        from headrace.runtime.event_loop import run_to_end
        from headrace.runtime.inline import SystemClock

        promises = run_to_end(lambda: find_promises(SystemClock()), "headrace doctor")
        for what, text in promises.words():
            yield True, what, text


def _torch() -> Iterator[tuple[bool, str, str]]:
    if find_spec("torch") is None:
        return
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            yield True, f"cuda:{index}", f"{device.name}, {device.total_memory / _GIB:.0f} GiB"
    else:
        yield True, "cuda", "no GPU; everything runs on the CPU"
    capability = torch.backends.cpu.get_cpu_capability()
    bf16 = torch.cpu._is_avx512_bf16_supported() if hasattr(torch.cpu, "_is_avx512_bf16_supported") else False
    yield True, "cpu kernels", f"{capability}; bfloat16 in hardware: {'yes' if bf16 else 'no (float32 is faster)'}"
