"""Where the Ray of a run has its folder: its sockets lie in it, and a socket's path is short."""

from __future__ import annotations

from pathlib import Path

from headrace.runtime.socket_parent import socket_parent

PREFIX = "headrace-ray-"
_BEHIND = 86
"""Bytes of a socket's path: `/headrace-ray-xxxxxxxx` has 22, and what Ray puts behind it 64 at most:
`/session_2026-11-28_00-31-59_123456_4194304/sockets/plasma_store`."""


def ray_parent() -> Path:
    """See `socket_parent`. Ray has its own in /tmp unless told, whatever TMPDIR says."""
    return socket_parent(_BEHIND, "a Ray that is started for the run")
