"""Folders that belong to the process that holds their lock, and are removed once nobody does: by their owner, or by the
next start of the same user's."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Callable
from io import RawIOBase
from pathlib import Path

from headrace import lifelines

_LOCK = "lock"


def make_owned(make: Callable[[], Path]) -> tuple[Path, RawIOBase]:
    """A folder that `make` has just made for its user alone, and its lock, which is held, by no fork of this process.
    Raises OSError."""
    while True:
        folder = make()
        lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _LOCK).exists():
            held = os.fdopen(lock, "r+b", buffering=0)
            lifelines.hold(held)
            return folder, held
        os.close(lock)  # somebody who starts as well took it for a dead one's


def remove_owned(folder: Path, lock: RawIOBase) -> None:
    """One's own, with all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()


def sweep(parent: Path, prefix: str) -> None:
    """Remove the folders in `parent` whose names begin so, which are this user's and nobody's any more."""
    for folder in parent.glob(f"{prefix}*"):
        _remove_if_dead(folder)


def _remove_if_dead(folder: Path) -> None:
    try:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # just made, or just removed
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    else:
        # Locked until it is gone: whoever is about to lock what they just made sees then that it is.
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
