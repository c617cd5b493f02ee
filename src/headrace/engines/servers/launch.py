"""From which a server is launched."""

from __future__ import annotations

import getpass
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.weights.swap_check import LONG, PREDICTED

CHECKED = PREDICTED // (LONG - 1)
"""Sequences of the swap check that a server computes beside those in flight: of these none ends for it in mode `keep`,
and who waits for a place would wait for one that does."""
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """Plain data."""

    python: str
    """The interpreter of the environment that the server is installed in."""
    weights: str
    """Folder of the model."""
    dtype: str
    slots: int
    max_context: int
    seed: int
    on_cpu: bool
    keeps: bool = False
    """What is in flight at an update goes on with its keys and values."""
    top_k: int = 0
    """The most ids of a kept set that are asked for."""
    kv_cache_gib: float | None = None
    threads: int | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    """The user's own, by the server's names."""
    start_s: float = 600.0
    """In which it has to be up."""


def server_environment(own: Mapping[str, str], folder: str) -> dict[str, str]:
    """What all servers get. `own`: the environment of whoever launches one. `folder`: for its sockets and what it puts
    aside, which other users of this machine do not read."""
    compiled = Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")  # as torch has it, and not in `folder`
    found = {name: value for name, value in own.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    found.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))
    found.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)  # where its processes listen for each other
    found.setdefault("NCCL_SOCKET_IFNAME", _LOOPBACK)
    return found | {"TMPDIR": folder}  # behind: with its first variable set anew, a process cannot give itself a name
