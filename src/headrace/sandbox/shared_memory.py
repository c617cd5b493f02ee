"""Files of shared memory that processes leave behind when they are killed. Imports the standard library alone, and
little of it: see `descendants`."""

from __future__ import annotations

import contextlib
import os

from headrace.sandbox.proc import read

_FOLDER = b"/dev/shm/"
_INODE = 4
"""Place in a line of `maps`; the path is behind it."""


def shared_by(pid: int, prefixes: tuple[str, ...]) -> set[str]:
    """The files in /dev/shm that the process has mapped or open, and whose paths begin with one of `prefixes`; none
    once it has ended. By /proc itself: psutil asks for the size of each mapping, a second of a large process. A
    semaphore is mapped under a name that it had while it was made; so mappings are found again by their inodes."""
    with contextlib.suppress(OSError):
        lines = [line for line in read(f"/proc/{pid}/maps").splitlines() if _FOLDER in line]
        inodes = {int(line.split(maxsplit=_INODE + 1)[_INODE]) for line in lines}
        paths = {each.path for each in os.scandir(_FOLDER.decode()) if each.inode() in inodes} if inodes else set()
        for each in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                paths.add(os.readlink(f"/proc/{pid}/fd/{each}"))
        return {path for path in paths if path.startswith(prefixes)}
    return set()
