"""What every actor's process begins with, before its worker is made."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from headrace.runtime.collection import expect_imports
from headrace.runtime.node_check import require_same, versions
from headrace.runtime.process.boot import class_at, thread_variables
from headrace.runtime.process.identity import end_with_starter, open_many_files
from headrace.runtime.ray.boot import ActorBoot


def worker_class(boot: ActorBoot) -> Any:
    """The worker's, in a process that prints where it is to, and has the threads, devices and modules that it is to
    have. Raises ValueError."""
    if boot.log is not None:
        _print_to(Path(boot.log))
    if not boot.has_devices:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if boot.devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = boot.devices
    os.environ.update(thread_variables(boot.threads))
    sys.path += [path for path in boot.paths if path not in sys.path]
    end_with_starter()  # the raylet: Ray's own watch over it leaves an actor with a call that waits
    open_many_files()
    expect_imports()
    return class_at(boot.kind, boot.packages)


def require_versions(boot: ActorBoot) -> None:
    """Raises NodeUnfit for a node on which what is told might mean something else."""
    require_same(platform.node(), versions(), boot.versions)


def _print_to(log: Path) -> None:
    """Where the folder of the run is here as well."""
    try:
        log.parent.mkdir(exist_ok=True)  # of a folder that is not here, nothing is made
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        return
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
