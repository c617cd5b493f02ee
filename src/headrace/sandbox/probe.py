"""Inside of the sandbox: tries what a program of the model must not have. Imports the standard library alone.

Exits with 0 if all of it is refused, else with 1.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable

from headrace.sandbox import linux
from headrace.sandbox.limits import Limits

_MIB = 1 << 20


def main() -> None:
    limits = Limits(memory_bytes=1024 * _MIB, processes=8, open_files=64, file_bytes=_MIB, cpu_s=10)
    limits.apply(reads_all=False, is_filtered=False)
    tries: tuple[Callable[[], object], ...] = (
        lambda: os.memfd_create("probe"),
        lambda: mmap.mmap(-1, _MIB),
        lambda: linux.unshare(linux.NEW_USER),
        lambda: os.setpriority(os.PRIO_PROCESS, 0, 19),
    )
    sys.exit(0 if all(map(_is_refused, tries)) else 1)


def _is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except PermissionError:
        return True
    except (AttributeError, OSError):
        return False
    return False
