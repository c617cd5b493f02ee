"""The weights that a server has, and how it comes to newer ones.

New weights are loaded only while the server is paused and all that it sampled before has been read. Nothing sampled
under them is handed out before the swap check has passed. Where that fails the server rests: what it has loaded is of
no version, and nothing is sampled until another update succeeds. What is in flight ends then, and is for other engines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from headrace.engines.liveness import Liveness
from headrace.engines.protocol import EngineError, SwapMode, SwapReport
from headrace.engines.servers.answers import name_of
from headrace.engines.servers.dialect import Dialect
from headrace.engines.servers.in_flight import InFlight
from headrace.runtime.protocol import Clock
from headrace.runtime.signal import Signal
from headrace.weights.plane import WeightError, WeightOffer, WeightReceiver
from headrace.weights.version import Version

T = TypeVar("T")

logger = logging.getLogger(__name__)

_DRAIN_S = 3600.0
_READ_S = 10.0
"""In which what a paused server has sampled must have come."""
_LOOK_S = 0.01
_TRIES = 3
"""Versions that are tried one after another, each of which overtook the one before."""
_HELD_S = 0.03
"""After which requests that are still open are taken to be held."""


class LoadedWeights:
    def __init__(
        self,
        dialect: Dialect,
        in_flight: InFlight,
        liveness: Liveness,
        changed: Signal,
        clock: Clock,
        *,
        dtype: str,
        rests: bool,
    ) -> None:
        """`changed`: notified when the server serves again. `dtype`: that it computes in, as `bfloat16`. `rests`: what
        it has loaded is of no version."""
        self.rests = rests
        self.is_swapping = False
        self.is_paused = False
        """The server is known to rest: it said so, and was not told to go on since."""
        self.stall_s = 0.0
        """Seconds in which weights were exchanged."""
        self._dialect = dialect
        self._in_flight = in_flight
        self._liveness = liveness
        self._changed = changed
        self._clock = clock
        self._dtype = dtype
        self._has_warned = False
        self._at_work: asyncio.Task[Any] | None = None
        """What is awaited of the server."""

    @property
    def serves(self) -> bool:
        """What is asked of the server goes there; else it waits."""
        return not (self.is_swapping or self.rests)

    async def swap(self, receiver: WeightReceiver, mode: SwapMode) -> SwapReport:
        """Have the server take the newest version. Raises WeightError, EngineError."""
        self.is_swapping = True
        try:
            offer = await self._unless_dead(self._offered(receiver, mode))
            interrupted = await self._unless_dead(self._pause(mode))
            began = self._clock.now()
            try:
                version = await self._exchange_newest(offer, receiver)
            except BaseException:
                self.rests = True
                raise
            finally:
                self.stall_s += self._clock.now() - began
            self._in_flight.version, self.rests = version, False
        except BaseException:
            self._leave()
            raise
        finally:
            self.is_swapping = False
            self._changed.notify()
        self._in_flight.release()
        return SwapReport(version, self._clock.now() - began, 0.0, 0, interrupted)

    def _leave(self) -> None:
        """Whatever breaks a swap off, cancellation between two of its parts included: what is left paused rests, and so
        does what goes on with weights that are of no version. What is in flight there ends: it may go on elsewhere."""
        self.rests = self.rests or self.is_paused
        if self.rests:
            self._in_flight.refuse()

    def break_off(self) -> None:
        """The server is dead: whoever awaits something of it hears so."""
        if self._at_work is not None:
            self._at_work.cancel()

    async def _unless_dead(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises EngineError once the server is dead, whatever it still owes."""
        task = self._at_work = asyncio.ensure_future(work)
        try:
            found = await task
            self._liveness.check_alive()  # it may have died since the work was done
            return found
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is None or not own.cancelling():
                self._liveness.check()
            raise
        finally:
            self._at_work = None

    async def _offered(self, receiver: WeightReceiver, mode: SwapMode) -> WeightOffer:
        """What is newest once nothing is waited for any more, beforehand: the bytes of what was so before may be gone.
        Raises WeightError, EngineError, and nothing was asked of the server."""
        if mode is SwapMode.DRAIN:
            await self._in_flight.until_none(_DRAIN_S, f"before {receiver.latest()} can be loaded")
        offer = receiver.offer()
        if offer is None:
            raise WeightError("nothing is published any more")
        return offer

    async def _pause(self, mode: SwapMode) -> int:
        """Have the server pause, and read what it has sampled. How many requests that found in flight. Raises
        EngineError, and the server goes on."""
        in_flight = self._in_flight
        try:
            found = len(in_flight)
            retracts = self._dialect.retracts
            rests = mode is SwapMode.KEEP or (mode is SwapMode.RECOMPUTE and retracts)
            if mode is SwapMode.KEEP and in_flight.count.before is None and not retracts:
                mode, rests = SwapMode.RECOMPUTE, False
                self._warn_of_no_count()
            await self._have_it_pause(mode)
            if rests:
                if in_flight.count.before is None:
                    await self._count_anew()
                await self._read_up()
                if mode is SwapMode.KEEP:
                    in_flight.put_off()
            else:
                await self._until_ended()
                await self._count_anew()
        except BaseException:
            if not self.rests and not self._liveness.is_dead:
                with suppress(EngineError):
                    await self._have_it_go_on()
            raise
        return found

    async def _have_it_pause(self, mode: SwapMode) -> None:
        await self._dialect.pause(mode)
        self.is_paused = True

    async def _have_it_go_on(self) -> None:
        self.is_paused = False  # it may go on though its answer is lost
        await self._dialect.resume()

    def _warn_of_no_count(self) -> None:
        """Once."""
        if not self._has_warned:
            logger.warning(
                "%s does not say how many tokens it has sampled, or before the update a request broke off, or the "
                "two counts differed: what is in flight is recomputed then, though async.swap is keep",
                self._dialect.name,
            )
        self._has_warned = True

    async def _count_anew(self) -> None:
        self._in_flight.count.begin(await self._dialect.sampled())

    async def _read_up(self) -> None:
        """Until all that the paused server has sampled has come: it says so, twice where what it says may be late.
        Raises EngineError if it does not."""
        in_flight, looks = self._in_flight, 1 if self._dialect.retracts else 2
        end, agreed = self._clock.now() + _READ_S, 0
        while in_flight and agreed < looks:
            told = await self._dialect.sampled()
            came = in_flight.count.handed_out
            agreed = agreed + 1 if told == came else 0
            if self._clock.now() >= end:
                in_flight.count.before = None  # somebody else may have had some of them: the next update begins anew
                raise EngineError(
                    f"{self._dialect.name} says that it has sampled {told} tokens, and {came} came within {_READ_S:g} s"
                )
            if agreed < looks:
                await self._clock.sleep(_LOOK_S)

    async def _until_ended(self) -> None:
        """The paused server has ended what it had. What reached it only then is held there, and is ended by name.
        Raises EngineError."""
        in_flight = self._in_flight
        end = self._clock.now() + _READ_S
        while in_flight:
            with suppress(EngineError):
                await in_flight.until_none(_HELD_S, "")
            self._liveness.check()
            if not in_flight:
                return
            if self._clock.now() >= end:
                raise EngineError(f"{len(in_flight)} requests did not end within {_READ_S:g} s, though all were ended")
            await self._dialect.abort(in_flight.names)

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
                newest = None
                with suppress(WeightError):
                    newest = receiver.offer()
                if left == 0 or self._liveness.is_dead or newest is None or newest.version == offer.version:
                    raise
                offer = newest
            finally:
                self._in_flight.checking = None

    async def _exchange(self, offer: WeightOffer) -> None:
        """Raises WeightError, EngineError: the server rests, and what it has loaded is of no version."""
        if not self.is_paused:  # one that was refused a version, and was told to pause in vain
            await self._have_refused_rest()
        await self._dialect.load(offer, name_of(offer.version))
        self._in_flight.is_named, self._in_flight.checking = True, offer.version
        try:
            await self._have_it_go_on()
            await self._check(offer)
        except BaseException:
            await self._take_back()
            raise

    async def _check(self, offer: WeightOffer) -> None:
        """Raises WeightError."""
        check, count = offer.swap_check, self._in_flight.count
        if check is None:
            return
        try:
            found = await self._dialect.score(check.tokens)
        except BaseException:
            count.before = None  # it may have sampled some of them
            raise
        if count.before is not None:
            count.before += len(check.tokens)
        fault = check.fault(found, self._dtype)
        if fault is not None:
            raise WeightError(f"{self._dialect.name} was refused {offer.version}: {fault}")

    async def _take_back(self) -> None:
        """Let nobody have what was sampled under weights that are refused."""
        if not self._liveness.is_dead:
            with suppress(EngineError):
                await self._have_refused_rest()
        self._in_flight.refuse()

    async def _have_refused_rest(self) -> None:
        """The server samples under weights that are refused. Raises EngineError."""
        await self._have_it_pause(SwapMode.RECOMPUTE)
        if self._dialect.retracts:
            await self._dialect.abort(self._in_flight.names)
