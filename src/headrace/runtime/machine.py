"""Which machine a process is on, and whose processes reach each other on its loopback."""

from __future__ import annotations

import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


def boot_id() -> str:
    """Of the kernel: another after each start of the machine. Empty where the system does not tell."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def loopback_here() -> str:
    """Whose processes reach each other on loopback: the start of the machine, and its network namespace, since
    containers may have one each. Empty where the system does not tell."""
    boot = boot_id()
    try:
        return f"{boot} {os.stat(_NETWORK).st_ino}" if boot else ""
    except OSError:
        return ""
