"""What an engine changes between two of its steps: its weights, or how much of its memory it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.engines.embedded.core import FlipCost, NewWeights
from headrace.engines.protocol import EngineError, SwapMode, SwapReport
from headrace.weights.plane import WeightError
from headrace.weights.version import Version


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


def is_to_take(offered: Version | None, held: Version, *, anew: bool) -> bool:
    """Whether an engine that has `held` is to take what is offered; `anew`: be it the same. Raises WeightError."""
    if offered is None or (offered == held and not anew):
        return False
    if offered.branch < held.branch:
        raise WeightError(
            f"publication {offered} is of branch {offered.branch}, which was left: "
            f"the engine holds {held}; publish on the new branch"
        )
    if offered < held:
        raise WeightError(f"publication {offered} is older than {held}, which the engine holds; publish a newer one")
    return True
