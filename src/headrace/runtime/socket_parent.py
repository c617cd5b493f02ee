"""Where folders are made that have Unix sockets in them: a socket's path is short."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from headrace.config import ConfigError

_LONGEST_PATH = 107
"""Bytes of a socket's."""
_SHORT = Path("/tmp")


def socket_parent(behind: int, whose: str) -> Path:
    """The folder of temporary files, or /tmp where sockets would have too long a path: there are `behind` bytes more of
    it. Raises ConfigError where /tmp cannot be written; `whose` says what has the sockets."""
    parent, longest = tempfile.gettempdir(), _LONGEST_PATH - behind
    length = len(os.fsencode(parent))
    if length <= longest:
        return Path(parent)
    if os.access(_SHORT, os.W_OK | os.X_OK):
        return _SHORT
    raise ConfigError(
        f"TMPDIR is {parent}, a path of {length} bytes, of which it may have {longest} for the sockets of {whose}, and "
        f"{_SHORT} cannot be written; set TMPDIR to a shorter one"
    )
