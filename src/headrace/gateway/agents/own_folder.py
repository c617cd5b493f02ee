"""The folder of one process's agents: sockets, and where programs begin. Nothing of it outlives the next start."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_LOCK = "lock"


class OwnFolder:
    """Made when it is asked for; then what processes of this user left that are no more is removed."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock = -1

    def of(self, episode: int) -> Path:
        """A folder of the episode's own, which nobody but the user can enter. Raises OSError."""
        if self._path is None:
            prefix = f"headrace-agents-{os.getuid()}-"
            _sweep(prefix)
            path = Path(tempfile.mkdtemp(prefix=prefix))
            self._lock = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._path = path
        folder = self._path / str(episode)
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def close(self) -> None:
        """Remove it, with all that is in it."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            os.close(self._lock)
            self._path = None


def _sweep(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            if folder.lstat().st_uid != os.getuid() or folder.is_symlink():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # just made, or just removed
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
