"""Who owns a run: one process at a time."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from headrace import lifelines
from headrace.store.errors import RunInUse, write_failed

LOCK_NAME = "run.lock"
_TRIES = 20
_PAUSE_S = 0.01


class RunLock:
    """An exclusive lock on the run's folder, held until `release` or the death of this process."""

    def __init__(self, folder: Path) -> None:
        """Raises RunInUse, naming the process that holds it; StoreError where nothing can be written."""
        self.folder = folder
        self._path = folder / LOCK_NAME
        descriptor = self._acquire()
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        lifelines.hold(self._file)  # a fork of this process would have the lock too, for as long as it lives
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            self.release()
            raise write_failed(error, self._path) from error

    def release(self) -> None:
        self._file.close()

    def _acquire(self) -> int:
        # `is_held` takes the lock for an instant; the pauses tell that instant from an owner.
        for _ in range(_TRIES):
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                raise write_failed(error, self._path) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                threading.Event().wait(_PAUSE_S)
                continue
            if self._is_current(descriptor):
                return descriptor
            os.close(descriptor)
        holder = owner(self._path.parent)
        raise RunInUse(
            f"{self._path.parent} is in use by process {holder if holder is not None else '(unknown)'}: "
            "wait for it to end, stop it, or choose another --dir"
        )

    def _is_current(self, descriptor: int) -> bool:
        """False if the file was erased between opening and locking it."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False


def owner(folder: Path) -> int | None:
    """The process that last took the lock, by its own word; None if unknown."""
    try:
        return int((folder / LOCK_NAME).read_text())
    except (OSError, ValueError):
        return None


def is_held(folder: Path) -> bool:
    """Whether some process owns the run now."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
