"""From which a server is launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
