"""`headrace doctor`: what this machine and installation offer, and what is missing."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from headrace import __version__
from headrace.controller.building.threads import available_threads
from headrace.observe.trackers.packages import PACKAGES

_NEEDED = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "pydantic",
    "omegaconf",
    "rich",
    "aiohttp",
    "msgpack",
    "psutil",
    "cloudpickle",
)
_EXTRAS = {
    "math_verify": ("math", "reward.function=math"),
    "jsonschema": ("schema", "reward.function=json_schema"),
    "matplotlib": ("plot", "headrace plot -o FILE.png"),
    "renderers": ("renderers", "gateway.renderer"),
    "megatron": ("megatron", "trainer.backend=megatron"),
    **{package: (extra, f"track=[{extra}]") for extra, package in PACKAGES.items()},
}
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
    for package in _NEEDED:
        try:
            yield True, package, version(package)
        except PackageNotFoundError:
            yield False, package, f"not installed: pip install {package}"
    for module, (extra, use) in _EXTRAS.items():
        found = find_spec(module) is not None
        yield True, module, "installed" if found else f"not installed; needed for {use}: pip install 'headrace[{extra}]'"
    yield from _machine()
    yield from _sandbox()
    yield from _torch()


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
