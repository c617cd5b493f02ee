"""What can go wrong with a run's folder. Every message names the path or value, and the mend."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from headrace.errors import HeadraceError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NEARLY_FULL_BYTES = 1 << 16


class StoreError(HeadraceError, RuntimeError):
    """The run's record cannot be read or written."""


class RunInUse(StoreError):
    """Another process owns the run."""


class RunMissing(StoreError):
    """The folder holds no run."""


class RunExists(StoreError):
    """The folder already holds a run, or files in the way of one."""


class ConfigMismatch(StoreError):
    """The run in the folder was made with another config."""


class DataMismatch(StoreError):
    """The run in the folder was begun with other data."""


class RunDamaged(StoreError):
    """A file of the run is broken or gone."""


class DiskFull(StoreError):
    """No space to write; what was recorded before is intact."""


class IllegalTransition(StoreError):
    """The ledger was asked for a change of state that it does not allow."""


class LawBroken(StoreError):
    """issued != running + ready + trained + dropped."""


def disk_full(path: Path) -> DiskFull:
    return DiskFull(
        f"no space left while writing {path}: free space on its disk (or raise the quota), then continue with "
        "--resume; everything recorded before is intact"
    )


def write_failed(error: Exception, path: Path) -> StoreError:
    """The error to raise when writing `path` failed with `error`."""
    full = isinstance(error, OSError) and error.errno in _FULL
    # Native writers (safetensors, torch) wrap the system's error in types of their own.
    if full or "No space left on device" in str(error):
        return disk_full(path)
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    return StoreError(f"cannot write {path}: {why}; check the disk and the folder's permissions")


def is_nearly_full(path: Path) -> bool:
    """Whether the disk of `path` has next to nothing free: SQLite calls some of these cases plain I/O errors."""
    return shutil.disk_usage(path.parent).free < _NEARLY_FULL_BYTES
