"""The private folder of a runtime's processes: their sockets and their shared memory.

It lies in memory where the system has such a place, and belongs to the process that holds its lock. It is removed at
the runtime's end; by a janitor, a process apart, should that end be a kill; and by whichever runtime of this user
starts next, should the janitor be killed as well.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")
_LEAST_MEMORY = 1 << 30
"""Bytes below which it is none to speak of: containers have 64 MiB unless told."""
_LONGEST_PARENT = 107 - 64
"""Bytes. A socket's path has 107; a site's name and the longest worker's are within 64."""
_LOCK = "lock"
_JANITOR = 'trap "" HUP INT TERM; read -r _; rm -rf -- "$1"'


def site_parent() -> Path:
    """Where sites are: in memory, or among temporary files, which the system keeps in memory while there is some."""
    if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).total >= _LEAST_MEMORY:
        return _MEMORY
    return Path(tempfile.gettempdir())


def _prefix() -> str:
    return f"headrace-{os.getuid()}-"


class Site:
    def __init__(self, run: str) -> None:
        """`run` names the run, as its folder does. Sweeps what dead runtimes of this user left. Raises OSError."""
        parent = site_parent()
        if len(os.fsencode(parent)) > _LONGEST_PARENT:
            raise OSError(
                f"{parent} is too long a path for the sockets of worker processes: {_LONGEST_PARENT} bytes "
                "at most; set TMPDIR to a shorter one"
            )
        sweep()
        digest = hashlib.sha256(run.encode()).hexdigest()[:8]
        while True:
            self.folder = parent / f"{_prefix()}{digest}-{secrets.token_hex(4)}"
            self.folder.mkdir(mode=0o700)
            self._lock = os.open(self.folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if (self.folder / _LOCK).exists():
                break
            os.close(self._lock)  # somebody who starts as well took it for a dead one's
        self._janitor = subprocess.Popen(
            ["/bin/sh", "-c", _JANITOR, "headrace-janitor", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """Remove it, with all that is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        assert self._janitor.stdin is not None
        self._janitor.stdin.close()
        self._janitor.wait()


def sweep() -> None:
    """Remove the folders of this user's runtimes that are no more."""
    for folder in site_parent().glob(f"{_prefix()}*"):
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


def socket_path(folder: Path, worker: str) -> Path:
    """Where a worker is spoken to; where the controller is, for the empty name."""
    return folder / f"{worker.replace('/', '-') or '_controller'}.sock"
