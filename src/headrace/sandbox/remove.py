"""Removes a folder, however it was left: nested deeper than Python goes, without rights, or with a million files.

Run as `python -I -S remove.py FOLDER`. Imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import sys

_PROGRAMS = "/bin:/usr/bin"


def remove(folder: str) -> None:
    """All of it, as far as that can be done; never raises."""
    try:
        os.rmdir(folder)  # most are empty
        return
    except OSError:
        pass
    for command in (["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        if not os.path.lexists(folder):
            return
        _call(*command, folder)


def _call(name: str, *arguments: str) -> None:
    import shutil  # seldom needed, and dear: see `rewards/processes/forked.py`
    import subprocess

    program = shutil.which(name, path=f"{_PROGRAMS}:{os.environ.get('PATH', '')}")
    if program is not None:
        with contextlib.suppress(OSError):
            quiet = subprocess.DEVNULL
            subprocess.run([program, *arguments], stdin=quiet, stdout=quiet, stderr=quiet, check=False)


if __name__ == "__main__":
    remove(sys.argv[1])
