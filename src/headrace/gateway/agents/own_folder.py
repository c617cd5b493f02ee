"""The folder of one process's agents: sockets, and where programs begin. Nothing of it outlives the next start."""

from __future__ import annotations

import os
import tempfile
from io import RawIOBase
from pathlib import Path

from headrace.runtime.owned_folders import make_owned, remove_owned, sweep
from headrace.runtime.socket_parent import socket_parent

_BEHIND = 56
"""Bytes of a socket's path behind where this is: `/headrace-agents-4294967295-xxxxxxxx/9999999999/api.sock`."""


class OwnFolder:
    """Made when it is asked for; then what processes of this user left that are no more is removed."""

    def __init__(self) -> None:
        self._owned: tuple[Path, RawIOBase] | None = None
        """With its lock."""

    def of(self, episode: int) -> Path:
        """A folder of the episode's own, which nobody but the user can enter. Raises OSError, and ConfigError where
        it would have too long a path for a socket."""
        if self._owned is None:
            prefix, parent = f"headrace-agents-{os.getuid()}-", socket_parent(_BEHIND, "agents that are programs")
            sweep(parent, prefix)
            self._owned = make_owned(lambda: Path(tempfile.mkdtemp(prefix=prefix, dir=parent)))
        folder = self._owned[0] / str(episode)
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def close(self) -> None:
        """Remove it, with all that is in it."""
        owned, self._owned = self._owned, None
        if owned is not None:
            remove_owned(*owned)
