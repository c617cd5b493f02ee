"""What is known of each engine of a pool: plain data, for whoever chooses among them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.weights.version import Version

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 30.0


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

    @property
    def serves(self) -> bool:
        return self.state in (EngineState.SERVING, EngineState.SWAPPING) and self.version is not None


def pause_after(failures: int) -> float:
    """Seconds before what failed so often in a row is tried again."""
    return float(min(FIRST_PAUSE_S * 2 ** max(failures - 1, 0), LONGEST_PAUSE_S))
