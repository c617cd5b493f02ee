"""What crosses between an engine that is a worker and whoever asks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from headrace.algorithms.kept_sets import KeptSets
from headrace.engines.protocol import (
    EngineStats,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    SwapMode,
    SwapReport,
    Tag,
    TokenChunk,
)
from headrace.runtime.wire.wire_types import WireTypes
from headrace.weights.offer_types import WEIGHT_TYPES
from headrace.weights.version import Version

OUTPUTS_BEAT_S = 20.0
"""A stream of outputs has an item, if an empty one, at least so often."""
STATUS_PAUSE_S = 0.1
"""Between two states that differ in their totals alone."""
STATUS_BEAT_S = 0.5
"""Between two of an engine that does nothing."""
QUIET_S = 3.0
"""Without a state, after which the clocks of those who wait for the engine stand still."""
SILENCE_S = 120.0
"""In which an item of either is waited for."""


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """In the place of a request's last chunk."""

    text: str
    is_refused: bool = False
    """No engine could serve it (`RequestError`); else this one could not (`EngineError`)."""
    is_uncertain: bool = False
    """What came of it is not to be gone on from (`UncertainVersions`)."""


Output = tuple[str, TokenChunk | RequestFailed]
"""A request's id, and what it got."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """An engine at one moment."""

    version: Version
    slots: int
    stats: EngineStats
    failure: str | None = None
    """Why it died; the worker may live."""
    failed_by: str = ""
    """The name of the error's class."""
    is_gone: bool = False
    """It died, and nobody will bring it back."""
    rests: bool = False
    """See `Engine.rests`."""
    asleep: tuple[Tag, ...] = ()
    """See `Engine.asleep`."""


class CallEngine(Protocol):
    """Asks an engine that is a worker."""

    async def __call__(self, method: str, *args: Any, what: str, seconds: float | None = None) -> Any:
        """What this method of its worker answers, within so many seconds. `what`: for messages. Raises what it raises,
        and EngineError."""


ENGINE_TYPES = WireTypes(
    {
        "engine_stats": EngineStats,
        "engine_status": EngineStatus,
        "finish_reason": FinishReason,
        "generate_request": GenerateRequest,
        "kept_sets": KeptSets,
        "request_failed": RequestFailed,
        "sampling_params": SamplingParams,
        "swap_mode": SwapMode,
        "swap_report": SwapReport,
        "tag": Tag,
        "token_chunk": TokenChunk,
    }
).with_types(WEIGHT_TYPES)
"""For whoever asks an engine that is a worker: to be among the types of the asking worker."""
