"""The private folder of a runtime's processes: their sockets and their shared memory.

It lies in memory where the system has such a place, and belongs to the process that holds its lock. It is removed at
the runtime's end; by a janitor, a process apart, should that end be a kill; and by whichever runtime of this user
starts next, should the janitor be killed as well.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

from headrace import lifelines
from headrace.runtime import owned_folders
from headrace.runtime.owned_folders import make_owned, remove_owned

_MEMORY = Path("/dev/shm")
_GIB = 1 << 30
_LEAST_MEMORY = _GIB
"""Bytes below which it is none to speak of: containers have 64 MiB unless told."""
_LONGEST_PARENT = 107 - 64
"""Bytes. A socket's path has 107; a site's name and the longest worker's are within 64."""
_END_S = 5.0
"""In which the janitor ends, once there is nothing to be removed."""
_JANITOR = 'trap "" HUP INT TERM; read -r _; rm -rf -- "$1"'
_APART = f"exec 3<&0; ({_JANITOR.replace('read -r _', 'read -r _ <&3')}) &"
"""As a grandchild: a process of Ray's kills its children as it ends."""


def site_parent() -> Path:
    """Where sites are: in memory, or among temporary files, which the system keeps in memory while there is some."""
    if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).total >= _LEAST_MEMORY:
        return _MEMORY
    return Path(tempfile.gettempdir())


def more_room(place: Path | str, needed: int, used: int) -> str:
    """How to have `needed` bytes beside those that are `used`, in `place`, as `site_parent` tells it: for people."""
    where = "there"
    if str(place) != str(_MEMORY):  # which is too small to be taken, and would be if it were as large
        where, used = f"in {_MEMORY}", 0
    size = (needed + used) // _GIB + 1
    return f"have {size} GiB {where} (mount -o remount,size={size}G {_MEMORY}, or a container's --shm-size={size}g)"


def _prefix() -> str:
    return f"headrace-{os.getuid()}-"


class Site:
    def __init__(self, run: str, *, apart: bool = False) -> None:
        """`run` names the run, as its folder does. `apart`: the janitor is no child of this process. Sweeps what dead
        runtimes of this user left. Raises OSError."""
        parent = site_parent()
        if len(os.fsencode(parent)) > _LONGEST_PARENT:
            raise OSError(
                f"{parent} is too long a path for the sockets of worker processes: {_LONGEST_PARENT} bytes "
                "at most; set TMPDIR to a shorter one"
            )
        sweep()
        digest = hashlib.sha256(run.encode()).hexdigest()[:8]

        def make() -> Path:
            folder = parent / f"{_prefix()}{digest}-{secrets.token_hex(4)}"
            folder.mkdir(mode=0o700)
            return folder

        self.folder, self._lock = make_owned(make)
        self._janitor = subprocess.Popen(
            ["/bin/sh", "-c", _APART if apart else _JANITOR, "headrace-janitor", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._janitor.stdin is not None
        lifelines.hold(self._janitor.stdin)

    def close(self) -> None:
        """Remove it, with all that is in it."""
        remove_owned(self.folder, self._lock)
        assert self._janitor.stdin is not None
        self._janitor.stdin.close()
        try:
            self._janitor.wait(_END_S)
        except subprocess.TimeoutExpired:  # it has nothing to do any more
            self._janitor.kill()
            self._janitor.wait()


def sweep() -> None:
    """Remove the folders of this user's runtimes that are no more."""
    owned_folders.sweep(site_parent(), _prefix())


def socket_path(folder: Path, worker: str) -> Path:
    """Where a worker is spoken to; where the controller is, for the empty name."""
    return folder / f"{worker.replace('/', '-') or '_controller'}.sock"


def own_folder(folder: Path, name: str, generation: int) -> Path:
    """Where a worker's segments are."""
    return folder / f"{name.replace('/', '-')}.{generation}"
