"""What an engine changes between two of its steps: its weights, or how much of its memory it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.engines.embedded.request_state import Sequence
from headrace.engines.protocol import EngineError, SwapMode, SwapReport
from headrace.weights.version import Version


@dataclass(slots=True)
class FlipCost:
    """Of one exchange of the weights; `prefill_s` and `recomputed_tokens` grow until `pending` is empty."""

    flip_s: float
    interrupted: int
    pending: list[Sequence]
    """Interrupted sequences that are not back in the cache."""
    prefill_s: float = 0.0
    recomputed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class NewWeights:
    """A version that is ready to be exchanged for the present one."""

    version: Version
    prepared: Any


@dataclass(slots=True)
class Move:
    """Into sleep, or out of it."""

    make: Callable[[], None]
    is_done: bool = False
    error: EngineError | None = None


@dataclass(slots=True)
class Swap:
    """Of the weights."""

    new: NewWeights
    mode: SwapMode
    cost: FlipCost | None = None

    @property
    def is_done(self) -> bool:
        return self.cost is not None and not self.cost.pending

    def report(self) -> SwapReport:
        """Once it is done."""
        cost = self.cost
        assert cost is not None
        return SwapReport(self.new.version, cost.flip_s, cost.prefill_s, cost.recomputed_tokens, cost.interrupted)
