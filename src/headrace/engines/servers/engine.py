"""An inference server as an engine.

Invariants. New weights are loaded only while the server is paused and all that it sampled before has been read, so the
version of each token is known without asking the server; what it says itself of each answer, at its end, has to agree.
Nothing sampled under new weights is handed out before the swap check has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from headrace.engines.held_version import Pin, Pins, is_to_take
from headrace.engines.liveness import Liveness
from headrace.engines.protocol import (
    EngineError,
    EngineStats,
    FinishReason,
    GenerateRequest,
    RequestError,
    SwapMode,
    SwapReport,
    Tag,
    TokenChunk,
)
from headrace.engines.servers.answers import Answer, name_of
from headrace.engines.servers.dialect import Dialect, Piece
from headrace.engines.servers.health import until_sick
from headrace.engines.servers.http import ServerGone
from headrace.engines.servers.window import ServerLoad, Window
from headrace.engines.validate import check_request
from headrace.runtime.protocol import Services, WaitTimeout
from headrace.runtime.signal import Signal
from headrace.weights.plane import WeightError, WeightOffer, WeightReceiver
from headrace.weights.version import INITIAL, Version

T = TypeVar("T")

_DRAIN_S = 3600.0
_READ_S = 10.0
"""In which what a paused server has sampled must have come."""
_LOOK_S = 0.01
_TRIES = 3
"""Versions that are tried one after another, each of which overtook the one before."""
_HELD_S = 0.03
"""After which requests that are still open are taken to be held."""


@dataclass(frozen=True, slots=True)
class Limits:
    slots: int
    """Sequences that the server decodes together."""
    max_context: int
    vocab_size: int
    dtype: str
    """That it computes in, as `bfloat16`."""


class ServerEngine:
    """See `Engine`. What an update in mode `recompute` cuts off, where the server does not retract it, ends with
    INTERRUPTED."""

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
        """`version`: of the weights that the server has; if it does not hold it, requests wait until it is updated.
        `died`: called once it is known to be dead, before anybody is told: who is told may end this process."""
        self.dialect = dialect
        self._limits = limits
        self._services = services
        self._version = version
        self._died = died
        self._liveness = Liveness()
        self._swapping = False
        """Requests wait."""
        self._rests = not holds
        self._checking: Version | None = None
        """What is sampled is of this version, and is held."""
        self._requests: dict[str, Answer] = {}
        self._window = Window.open(limits.slots)
        self._waiting = 0
        self._updating = asyncio.Lock()
        self._at_work: asyncio.Task[Any] | None = None
        """What an update awaits of the server."""
        self._watching: asyncio.Task[None] | None = None
        self._changed = Signal()
        self._pins = Pins(self._changed)
        self._read = 0
        """Tokens that came since the server was met."""
        self._read_before: int | None = None
        """Tokens that it had handed out by then; None if that is not known any more."""
        self._prefilled = 0
        self._stall_s = self._busy_s = self._idle_s = 0.0
        self._since = services.clock.now()

    @property
    def version(self) -> Version:
        return self._version

    @property
    def failure(self) -> Exception | None:
        return self._liveness.failure

    @property
    def rests(self) -> bool:
        return self._rests

    @property
    def slots(self) -> int:
        return self._limits.slots

    async def start(self) -> None:
        """The server is up, and has been met. Raises EngineError."""
        self._read_before = await self.dialect.sampled()
        self._since = self._services.clock.now()
        self._liveness.started = True
        self._watching = self._services.spawn(self._watch(), "the server's health")

    async def _watch(self) -> None:
        self.fail(await until_sick(self.dialect, self._services.clock, self._hear))

    def _hear(self, load: ServerLoad) -> None:
        self._window = self._window.after(load, len(self._requests))
        self._changed.notify()

    async def stop(self) -> None:
        """See `Engine.stop`. The server goes on."""
        self._liveness.stopping = True
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        answers = [*self._requests.values()]
        pumps = [answer.pump for answer in answers if answer.pump is not None]
        for answer in answers:
            answer.end(FinishReason.ABORT)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        self._changed.notify()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        """See `Engine.generate`."""
        self._liveness.check()
        check_request(request, self._limits.vocab_size, self._limits.max_context)
        await self._may_begin(request)
        if request.request_id in self._requests:
            raise RequestError(f"request id {request.request_id!r} is in use; give each request its own")
        room = self._limits.max_context - len(request.prompt)
        sampling = replace(request.sampling, max_new_tokens=min(request.sampling.max_new_tokens, room))
        mine = self._requests[request.request_id] = Answer(replace(request, sampling=sampling))
        self._note_load()
        self._prefilled += len(request.prompt)
        mine.pump = self._services.spawn(self._pump(mine), f"request {request.request_id}")
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
        """See `Engine.abort`. What the server still sends is read, so that it is known how much it sent."""
        ended = [name for name in request_ids if (mine := self._requests.get(name)) is not None and not mine.is_over]
        for name in ended:
            self._requests[name].end(FinishReason.ABORT)
        if ended:
            self._services.spawn(self._tell_aborted(ended), "requests to be ended")

    async def _tell_aborted(self, names: list[str]) -> None:
        try:
            await self.dialect.abort(names)
        except EngineError:  # then by leaving them
            for name in names:
                if (mine := self._requests.get(name)) is not None and mine.pump is not None:
                    mine.pump.cancel()

    async def update(self, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
        """See `Engine.update`. Raises WeightError, EngineError; from then on nothing is sampled until it succeeds."""
        async with self._updating:
            self._liveness.check()
            offer = receiver.offer()
            if offer is None or not is_to_take(offer.version, self._version, anew=self._rests):
                return None
            clock = self._services.clock
            await self._pins.all_released(clock, self._version, "replaced", lambda: self._liveness.is_dead)
            self._liveness.check()
            self._swapping = True
            try:
                interrupted = await self._unless_dead(self._rest(mode, offer.version))
                began = clock.now()
                try:
                    version = await self._exchange_newest(offer, receiver)
                except BaseException:
                    self._rests = True
                    raise
                finally:
                    self._stall_s += clock.now() - began
                self._version, self._rests = version, False
            finally:
                self._swapping = False
                self._changed.notify()
            self._release()
            return SwapReport(version, clock.now() - began, 0.0, 0, interrupted)

    async def sleep(self, tags: Sequence[Tag], *, sends_away: bool = False) -> None:
        """Raises EngineError: none does yet."""
        raise EngineError(f"{self.dialect.name} is not put to sleep")

    async def wake(self, tags: Sequence[Tag]) -> None:
        """See `sleep`: it is awake."""

    def pin(self) -> Pin:
        self._liveness.check()
        return self._pins.pin(self._version)

    def kill(self, reason: str) -> None:
        """Serve nothing more, as if the server had ended by `reason`."""
        self.fail(EngineError(reason))

    def fail(self, error: Exception) -> None:
        """It is dead: nobody may wait for it, and who does is told so. What came before is handed out."""
        if not self._liveness.has_ended:
            self._note_load()
            self._died()
            self._liveness.failure = error
            if self._at_work is not None:
                self._at_work.cancel()
            for name, answer in self._requests.items():
                answer.pieces.put_nowait(EngineError(f"request {name!r} was lost: {error}"))
            self._changed.notify()

    def stats(self) -> EngineStats:
        self._note_load()
        return EngineStats(
            running=len(self._requests),
            waiting=self._waiting,
            generated_tokens=self._read,
            prefilled_tokens=self._prefilled,
            decode_steps=0,
            busy_s=self._busy_s,
            swap_stall_s=self._stall_s,
            idle_s=self._idle_s,
        )

    async def _may_begin(self, request: GenerateRequest) -> None:
        """Once no swap is on its way, the version is new enough, and the server has room."""
        floor = request.min_version

        def may() -> bool:
            if self._swapping or self._rests or len(self._requests) >= self._window.size:
                return self._liveness.has_ended
            return floor is None or self._version.serves(floor) or self._liveness.has_ended

        self._waiting += 1
        try:
            await self._changed.wait_until(may, self._services.clock, _DRAIN_S, lambda: "new weights, or room")
        except WaitTimeout as late:
            raise EngineError(f"request {request.request_id}: {late}") from late
        finally:
            self._waiting -= 1
        self._liveness.check()

    async def _pump(self, mine: Answer) -> None:
        """Read what comes of one request, to its end."""
        name = mine.asked.request_id
        try:
            async with aclosing(self.dialect.stream(mine.asked)) as pieces:
                async for piece in pieces:
                    self._take(mine, piece)
                    if piece.finish is not None:
                        return
            raise EngineError(f"request {name} ended without a finish reason")
        except (EngineError, RequestError) as error:
            self._read_before = None
            if isinstance(error, ServerGone) and not await self.dialect.is_up():
                self.fail(error)
            mine.pieces.put_nowait(error)
        except asyncio.CancelledError:
            self._read_before = None
            raise
        finally:
            mine.is_read = True
            if not mine.held:
                self._leave(name)

    def _leave(self, name: str) -> None:
        """The request is over, and all that came of it is handed out."""
        self._note_load()
        self._requests.pop(name, None)
        self._changed.notify()

    def _take(self, mine: Answer, piece: Piece) -> None:
        self._read += len(piece.tokens)
        chunk = mine.stamp(piece, self._checking or self._version)
        if mine.is_over:
            return
        if self._checking is None:
            mine.pieces.put_nowait(chunk)
        else:
            mine.held.append(chunk)

    async def _unless_dead(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises EngineError once the server is dead, whatever it still owes."""
        task = self._at_work = asyncio.ensure_future(work)
        try:
            return await task
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is None or not own.cancelling():
                self._liveness.check()
            raise
        finally:
            self._at_work = None

    async def _rest(self, mode: SwapMode, version: Version) -> int:
        """Have the server pause, and read what it has sampled. How many requests that found in flight. Raises
        EngineError, and the server goes on."""
        try:
            if mode is SwapMode.DRAIN:
                await self._until_none(_DRAIN_S, f"before {version} can be loaded")
            in_flight = len(self._requests)
            retracts = self.dialect.retracts
            rests = mode is SwapMode.KEEP or (mode is SwapMode.RECOMPUTE and retracts)
            if mode is SwapMode.KEEP and self._read_before is None and not retracts:
                mode, rests = SwapMode.RECOMPUTE, False
            await self.dialect.pause(mode)
            if rests:
                if self._read_before is None:
                    await self._count_anew()
                await self._read_up()
            else:
                await self._until_ended()
                await self._count_anew()
        except BaseException:
            if not self._rests and not self._liveness.is_dead:
                with suppress(EngineError):
                    await self.dialect.resume()
            raise
        return in_flight

    async def _count_anew(self) -> None:
        """All that the server has sampled has come."""
        told = await self.dialect.sampled()
        self._read_before = None if told is None else told - self._read

    async def _exchange_newest(self, offer: WeightOffer, receiver: WeightReceiver) -> Version:
        """One that fails and was overtaken meanwhile, whose bytes are perhaps gone, gives way to the newest at once.
        Raises as `_exchange`."""
        left = _TRIES
        while True:
            left -= 1
            try:
                await self._unless_dead(self._exchange(offer))
                return offer.version
            except (WeightError, EngineError):
                newest = receiver.offer()
                if left == 0 or self._liveness.is_dead or newest is None or newest.version == offer.version:
                    raise
                offer = newest
            finally:
                self._checking = None

    async def _exchange(self, offer: WeightOffer) -> None:
        """Raises WeightError, EngineError: the server rests, and what it has loaded is of no version."""
        await self.dialect.load(offer, name_of(offer.version))
        self._checking = offer.version
        await self.dialect.resume()
        try:
            await self._check(offer)
        except BaseException:
            await self._take_back()
            raise

    async def _check(self, offer: WeightOffer) -> None:
        """Raises WeightError."""
        check = offer.swap_check
        if check is None:
            return
        before, self._read_before = self._read_before, None
        found = await self.dialect.score(check.tokens)
        self._read_before = None if before is None else before + len(check.tokens)
        fault = check.fault(found, self._limits.dtype)
        if fault is not None:
            raise WeightError(f"{self.dialect.name} was refused {offer.version}: {fault}")

    async def _take_back(self) -> None:
        """Let nobody have what was sampled under weights that are refused: what is in flight ends."""
        if not self._liveness.is_dead:
            with suppress(EngineError):
                await self.dialect.pause(SwapMode.RECOMPUTE)
                if self.dialect.retracts:
                    await self.dialect.abort(tuple(self._requests))
        for answer in self._requests.values():
            answer.end(FinishReason.INTERRUPTED)
        self._leave_read()

    async def _read_up(self) -> None:
        """Until all that the paused server has sampled has come: it says so, twice where what it says may be late.
        Raises EngineError if it does not."""
        clock, looks = self._services.clock, 1 if self.dialect.retracts else 2
        end, agreed = clock.now() + _READ_S, 0
        while self._requests and agreed < looks:
            told = await self.dialect.sampled()
            came = (self._read_before or 0) + self._read
            agreed = agreed + 1 if told == came else 0
            if clock.now() >= end:
                raise EngineError(
                    f"{self.dialect.name} says that it has sampled {told} tokens, and {came} came within {_READ_S:g} s"
                )
            if agreed < looks:
                await clock.sleep(_LOOK_S)

    async def _until_ended(self) -> None:
        """The paused server has ended what it had. What reached it only then is held there, and is ended by name.
        Raises EngineError."""
        clock = self._services.clock
        end = clock.now() + _READ_S
        while self._requests:
            with suppress(WaitTimeout):
                await self._changed.wait_until(
                    lambda: not self._requests or self._liveness.has_ended, clock, _HELD_S, str
                )
            self._liveness.check()
            if not self._requests:
                return
            if clock.now() >= end:
                raise EngineError(
                    f"{len(self._requests)} requests did not end within {_READ_S:g} s, though all were ended"
                )
            await self.dialect.abort(tuple(self._requests))

    async def _until_none(self, seconds: float, why: str) -> None:
        try:
            await self._changed.wait_until(
                lambda: not self._requests or self._liveness.has_ended,
                self._services.clock,
                seconds,
                lambda: f"{len(self._requests)} requests in flight {why}",
            )
        except WaitTimeout as late:
            raise EngineError(str(late)) from late
        self._liveness.check()

    def _release(self) -> None:
        """What was held, of requests too that ended meanwhile."""
        for answer in self._requests.values():
            answer.release()
        self._leave_read()

    def _leave_read(self) -> None:
        for name in [name for name, answer in self._requests.items() if answer.is_read]:
            self._leave(name)

    def _note_load(self) -> None:
        now = self._services.clock.now()
        if self._liveness.started and not self._liveness.is_dead:
            if self._requests:
                self._busy_s += now - self._since
            else:
                self._idle_s += now - self._since
        self._since = now
