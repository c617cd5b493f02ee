"""An inference server as an engine.

Invariants. New weights are loaded only while the server is paused and all that it sampled before has been read
(`loaded_weights`), so the version of each token is known without asking the server (`in_flight`); what it says itself
of each answer, at its end, has to agree. Nothing sampled under new weights is handed out before the swap check has
passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from headrace.engines.held_version import Pin, Pins, is_to_take
from headrace.engines.liveness import Liveness
from headrace.engines.protocol import (
    EngineError,
    EngineStats,
    FinishReason,
    GenerateRequest,
    SwapMode,
    SwapReport,
    Tag,
    TokenChunk,
)
from headrace.engines.servers.answers import nothing
from headrace.engines.servers.dialect import Dialect
from headrace.engines.servers.health import until_sick
from headrace.engines.servers.in_flight import InFlight
from headrace.engines.servers.loaded_weights import LoadedWeights
from headrace.engines.servers.token_silence import until_stuck
from headrace.engines.validate import check_request
from headrace.runtime.protocol import Services, WaitTimeout
from headrace.runtime.signal import Signal
from headrace.weights.plane import WeightReceiver
from headrace.weights.version import INITIAL, Version

_BEGIN_S = 3600.0
"""In which the server is there for a request."""


@dataclass(frozen=True, slots=True)
class Limits:
    slots: int
    """Sequences that the server decodes together."""
    max_context: int
    vocab_size: int
    dtype: str
    """That it computes in, as `bfloat16`."""
    silence_s: float | None = None
    """The most without a token of any of its requests: see `TokenSilence`."""


@dataclass(eq=False, slots=True)
class _Waiter:
    """A request that the server was not asked yet."""

    request_id: str
    is_aborted: bool = False


class ServerEngine:
    """See `Engine`. What an update in mode `recompute` cuts off, where the server does not retract it, ends with
    INTERRUPTED; in mode `keep`, what no token came of yet; and while it rests, all that it has, or is asked for."""

    gives_kept_sets = True
    quiet = None
    asleep: tuple[Tag, ...] = ()

    def __init__(
        self,
        dialect: Dialect,
        limits: Limits,
        services: Services,
        *,
        version: Version = INITIAL,
        holds: bool = True,
        died: Callable[[], None] = lambda: None,
    ) -> None:
        """`version`: of the weights that the server has; if it does not hold it, it rests until it is updated.
        `died`: called once it is known to be dead, before anybody is told: who is told may end this process."""
        self.dialect = dialect
        self._limits = limits
        self._services = services
        self._died = died
        self._liveness = Liveness()
        self._changed = Signal()
        self._pins = Pins(self._changed)
        self._in_flight = InFlight(
            dialect,
            services,
            self._liveness,
            self._changed,
            version,
            limits.silence_s,
            slots=limits.slots,
            fail=self.fail,
        )
        self._weights = LoadedWeights(
            dialect,
            self._in_flight,
            self._liveness,
            self._changed,
            services.clock,
            dtype=limits.dtype,
            rests=not holds,
        )
        self._waiting: set[_Waiter] = set()
        self._updating = asyncio.Lock()
        self._watching: list[asyncio.Task[None]] = []

    @property
    def version(self) -> Version:
        return self._in_flight.version

    @property
    def failure(self) -> Exception | None:
        return self._liveness.failure

    @property
    def rests(self) -> bool:
        return self._weights.rests

    @property
    def slots(self) -> int:
        return self._limits.slots

    async def start(self) -> None:
        """The server is up, and has been met. Raises EngineError."""
        self._in_flight.count.begin(await self.dialect.sampled())
        self._in_flight.begin_load()
        self._liveness.started = True
        spawn = self._services.spawn
        self._watching = [spawn(self._watch(), "the server's health"), spawn(self._watch_tokens(), "its tokens")]

    async def _watch(self) -> None:
        self.fail(await until_sick(self.dialect, self._services.clock, self._in_flight.hear))

    async def _watch_tokens(self) -> None:
        silence = self._in_flight.silence
        self.fail(await until_stuck(self.dialect.name, silence, self._services.clock, self._owed))

    def _owed(self) -> int:
        """Requests that the server is to give tokens of now."""
        return 0 if self._weights.is_paused else self._in_flight.unread

    async def stop(self) -> None:
        """See `Engine.stop`. The server goes on."""
        self._liveness.stopping = True
        for waiter in self._waiting:
            waiter.is_aborted = True
        for watching in self._watching:
            watching.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        await self._in_flight.stop()
        self._changed.notify()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        """See `Engine.generate`."""
        self._liveness.check()
        check_request(request, self._limits.vocab_size, self._limits.max_context)
        if (ended := await self._ended_waiting(request)) is not None:
            yield nothing(ended)
            return
        room = self._limits.max_context - len(request.prompt)
        sampling = replace(request.sampling, max_new_tokens=min(request.sampling.max_new_tokens, room))
        mine = self._in_flight.begin(replace(request, sampling=sampling))
        finished = False
        try:
            while True:
                chunk = await mine.pieces.get()
                finished = isinstance(chunk, Exception) or chunk.finish_reason is not None
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
                if finished:
                    return
        finally:
            if not finished:
                self.abort([request.request_id])

    def abort(self, request_ids: Iterable[str]) -> None:
        """See `Engine.abort`."""
        ended = set(request_ids)
        self._in_flight.abort(ended)
        if waiting := [each for each in self._waiting if each.request_id in ended]:
            for each in waiting:
                each.is_aborted = True
            self._changed.notify()

    async def update(self, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
        """See `Engine.update`. Raises WeightError, EngineError; from then on nothing is sampled until it succeeds."""
        async with self._updating:
            self._liveness.check()
            if not is_to_take(receiver.latest(), self.version, anew=self.rests):
                return None
            await self._pins.all_released(
                self._services.clock, self.version, "replaced", lambda: self._liveness.is_dead
            )
            self._liveness.check()
            return await self._weights.swap(receiver, mode)

    async def sleep(self, tags: Sequence[Tag], *, sends_away: bool = False) -> None:
        """Raises EngineError: none does yet."""
        raise EngineError(f"{self.dialect.name} is not put to sleep")

    async def wake(self, tags: Sequence[Tag]) -> None:
        """See `sleep`: it is awake."""

    def pin(self) -> Pin:
        """See `Engine.pin`. Raises EngineError also while it takes a version, or rests."""
        self._liveness.check()
        if not self._weights.serves:
            raise EngineError(f"{self.dialect.name} has no version to be held: it is to take a new one first")
        return self._pins.pin(self.version)

    async def settled(self, seconds: float) -> None:
        """Once it takes no version, it has died, or so many `seconds` have passed."""
        with suppress(WaitTimeout):
            await self._changed.wait_until(
                lambda: not self._weights.is_swapping or self._liveness.has_ended,
                self._services.clock,
                seconds,
                lambda: "new weights",
            )

    def kill(self, reason: str) -> None:
        """Serve nothing more, as if the server had ended by `reason`."""
        self.fail(EngineError(reason))

    def fail(self, error: Exception) -> None:
        """It is dead: nobody may wait for it, and who does is told so. What came before is handed out."""
        if not self._liveness.has_ended:
            self._in_flight.note_load()
            self._died()
            self._liveness.failure = error
            self._weights.break_off()
            self._in_flight.lose(error)
            self._changed.notify()

    def stats(self) -> EngineStats:
        mine = self._in_flight
        mine.note_load()
        return EngineStats(
            running=len(mine),
            waiting=len(self._waiting),
            generated_tokens=mine.count.read,
            prefilled_tokens=mine.prefilled,
            decode_steps=0,
            busy_s=mine.busy_s,
            swap_stall_s=self._weights.stall_s,
            idle_s=mine.idle_s,
        )

    async def _ended_waiting(self, request: GenerateRequest) -> FinishReason | None:
        """None once no swap is on its way, the version is new enough, and the server has room; else how it ended
        before. Of one that rests nobody knows when it serves again: others may serve the request."""
        floor, waiter = request.min_version, _Waiter(request.request_id)

        def is_over() -> bool:
            if self._liveness.has_ended or waiter.is_aborted or self._weights.rests:
                return True
            new_enough = floor is None or self.version.serves(floor)
            return new_enough and self._weights.serves and self._in_flight.has_room

        self._waiting.add(waiter)
        try:
            await self._changed.wait_until(is_over, self._services.clock, _BEGIN_S, lambda: "new weights, or room")
        except WaitTimeout as late:
            raise EngineError(f"request {request.request_id}: {late}") from late
        finally:
            self._waiting.discard(waiter)
        if waiter.is_aborted:
            return FinishReason.ABORT
        self._liveness.check()
        return FinishReason.INTERRUPTED if self._weights.rests else None
