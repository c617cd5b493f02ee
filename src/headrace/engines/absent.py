"""The place of the engine in a run that asks none: what is trained on was recorded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence

from headrace.engines.protocol import (
    EngineError,
    EngineStats,
    GenerateRequest,
    PinnedVersion,
    SwapMode,
    SwapReport,
    Tag,
    TokenChunk,
)
from headrace.weights.plane import WeightReceiver
from headrace.weights.version import INITIAL, Version


class AbsentEngine:
    """Follows the version, and samples nothing."""

    gives_kept_sets = True
    rests = False
    asleep: tuple[Tag, ...] = ()
    failure: Exception | None = None
    quiet = None
    slots = 1

    def __init__(self) -> None:
        self._version = INITIAL

    @property
    def version(self) -> Version:
        return self._version

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        raise EngineError(_ABSENT)

    def abort(self, request_ids: Iterable[str]) -> None:
        pass

    async def update(self, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
        self._version = receiver.latest() or self._version
        return None

    async def sleep(self, tags: Sequence[Tag], *, sends_away: bool = False) -> None:
        """It has no memory."""

    async def wake(self, tags: Sequence[Tag]) -> None:
        """It has none."""

    def pin(self) -> PinnedVersion:
        raise EngineError(_ABSENT)

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, 0, 0, 0, 0.0, 0.0)


_ABSENT = "this run has no engine: it trains on recorded rollouts"
