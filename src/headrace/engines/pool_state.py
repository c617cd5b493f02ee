"""What is known of each engine of a pool: plain data, for whoever chooses among them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.weights.version import Version


class EngineState(StrEnum):
    STARTING = "starting"
    """It has no version yet: the newest whole one is on its way."""
    SERVING = "serving"
    SWAPPING = "swapping"
    """It serves, while it takes a newer version."""
    EJECTED = "ejected"
    """It died, or was taken out, and is to come back."""
    GONE = "gone"
    """It does not come back."""


UP = (EngineState.SERVING, EngineState.SWAPPING)


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine at one moment."""

    index: int
    state: EngineState
    version: Version | None
    """None until it holds the newest whole one."""
    outstanding: int = 0
    """Tokens that it still has to sample, at most: of its groups, and of requests that it serves for others."""
    pins: int = 0
    failures: int = 0
    """In a row."""
    rests: bool = False
    """See `Engine.rests`."""
    lent: bool = False
    """It is on the trainer's devices, and may be taken back at any moment."""

    @property
    def serves(self) -> bool:
        return self.state in UP and self.version is not None and not self.rests
