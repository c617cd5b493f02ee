"""What the controller knows of one relay."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.weights.plane import WeightOffer
from headrace.weights.relay.journey import Plane
from headrace.weights.version import Version


@dataclass(slots=True)
class RelayPlace:
    """One relay of receivers."""

    plane: Plane
    """Where its present life is."""
    last: Version | None = None
    """The newest that it ever had."""
    offer: WeightOffer | None = None
    """Of the version that it has now."""
    failures: int = 0
    """In a row."""
    due: float = 0.0
    """When it is tried again."""
    fault: str = ""
    """The last one; empty once it has taken a version."""
    is_told: bool = False
    """That it was lost."""
    life: int = 0
    """How often it was made. What a journey says of one that was made anew meanwhile is of the one before."""
