"""Where the Ray of a run has its folder: its sockets lie in it, and a socket's path is short."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from headrace.config import ConfigError

PREFIX = "headrace-ray-"
_LONGEST = 107 - 86
"""Bytes. A socket's path has 107; of these `/headrace-ray-xxxxxxxx` has 22, and what Ray puts behind it 64 at most:
`/session_2026-11-28_00-31-59_123456_4194304/sockets/plasma_store`."""
_SHORT = Path("/tmp")
"""Where Ray has its own unless told, whatever TMPDIR says."""


def ray_parent() -> Path:
    """The folder of temporary files, or /tmp where sockets would have too long a path. Raises ConfigError where /tmp
    cannot be written."""
    parent = tempfile.gettempdir()
    length = len(os.fsencode(parent))
    if length <= _LONGEST:
        return Path(parent)
    if os.access(_SHORT, os.W_OK | os.X_OK):
        return _SHORT
    raise ConfigError(
        f"TMPDIR is {parent}, a path of {length} bytes, of which it may have {_LONGEST} for the sockets of a Ray "
        f"that is started for the run, and {_SHORT} cannot be written; set TMPDIR to a shorter one"
    )
