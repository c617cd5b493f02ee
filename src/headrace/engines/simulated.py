"""An engine that computes nothing: it charges modelled seconds, and answers what follows from the request."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.engines.held_version import Pin, Pins, is_to_take
from headrace.engines.liveness import Liveness
from headrace.engines.protocol import (
    EngineError,
    EngineStats,
    GenerateRequest,
    SwapMode,
    SwapReport,
    Tag,
    TokenChunk,
)
from headrace.engines.simulated_answers import Answers
from headrace.engines.simulated_costs import NO_FAULTS, EngineCosts, EngineFaults
from headrace.engines.simulated_scheduler import SimulatedScheduler
from headrace.runtime.protocol import Runtime
from headrace.runtime.signal import Signal
from headrace.weights.plane import WeightError, WeightReceiver
from headrace.weights.version import INITIAL, Version

_WEIGHTS_LANE = "weights"
_DEADLINE_S = 3600.0
"""Of waits for sequences in flight."""

Watch = Callable[[str, object], None]
"""Told what an engine does: a word, and what of."""


@dataclass(slots=True)
class _Swap:
    version: Version
    mode: SwapMode
    report: SwapReport | None = None


class SimulatedEngine:
    """See `Engine`. A decode step takes as long as `costs` says of so many sequences; one that has begun ends before
    anything changes, and all of its tokens are of one version."""

    gives_kept_sets = False
    quiet = None

    def __init__(
        self,
        runtime: Runtime,
        costs: EngineCosts = EngineCosts(),  # noqa: B008 (frozen)
        answers: Answers = Answers(),  # noqa: B008 (frozen)
        faults: EngineFaults = NO_FAULTS,
        *,
        interrupts: bool = False,
        watch: Watch = lambda word, what: None,
        version: Version = INITIAL,
    ) -> None:
        """`interrupts`: a swap in mode `recompute` cuts off what is in flight, as servers do; else it is prefilled
        again."""
        self._runtime = runtime
        self._costs = costs
        self._scheduler = SimulatedScheduler(costs, answers, lambda reason, request_id: watch(reason.value, request_id))
        self._faults = faults
        self._interrupts = interrupts
        self._watch = watch
        self._version = version
        self._liveness = Liveness()
        self._task: asyncio.Task[None] | None = None
        self._swap: _Swap | None = None
        self._updating = asyncio.Lock()
        self._asleep: tuple[Tag, ...] = ()
        self._falling_asleep: tuple[Tag, ...] = ()
        self._sends_away = False
        self._failed_once: set[int] = set()
        self._work = asyncio.Event()
        self._changed = Signal()
        self._pins = Pins(self._changed, self._work.set)
        self._prefilled = self._steps = 0
        self._busy_s = self._stall_s = self._recompute_s = self._idle_s = 0.0
        self._idle_since: float | None = None

    @property
    def version(self) -> Version:
        return self._version

    @property
    def failure(self) -> Exception | None:
        return self._liveness.failure

    @property
    def slots(self) -> int:
        return self._costs.slots

    @property
    def rests(self) -> bool:
        return bool(self._asleep)

    @property
    def asleep(self) -> tuple[Tag, ...]:
        return self._asleep

    async def start(self) -> None:
        if self._task is not None:
            raise EngineError("the engine was started already")
        self._liveness.started = True
        self._task = self._runtime.spawn(self._serve(), "simulated engine")

    async def stop(self) -> None:
        if self._task is None:
            return
        self._liveness.stopping = True
        self._work.set()
        await self._runtime.clock.wait_for(self._task, _DEADLINE_S, "the engine's last decode step")
        self._task = None

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        self._liveness.check()
        sequence = self._scheduler.add(request)
        self._work.set()
        try:
            while True:
                chunk = await sequence.chunks.get()
                if isinstance(chunk, Exception):
                    raise EngineError(f"request {request.request_id!r} was lost: {chunk}") from chunk
                yield chunk
                if chunk.finish_reason is not None:
                    return
        finally:
            if not sequence.is_finished:
                self.abort([request.request_id])
            self._scheduler.leave(sequence)

    def abort(self, request_ids: Iterable[str]) -> None:
        if self._scheduler.abort(request_ids):
            self._work.set()

    async def update(self, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
        """See `Engine.update`. Raises WeightError for a version that fails, or is of a branch that was left."""
        clock = self._runtime.clock
        async with self._updating:
            self._liveness.check()
            if not self._is_newer(receiver.latest()):
                return None
            await self._let_go("replaced")
            manifest, _ = await self._runtime.compute(_WEIGHTS_LANE, receiver.receive)
            number = manifest.version.number
            if (late := self._faults.late_swaps.get(number, 0.0)) > 0:
                self._watch("swap late", manifest.version)
            await clock.sleep(self._costs.receive_s + late)
            if number in self._faults.lost_swaps - self._failed_once:
                self._failed_once.add(number)
                self._watch("swap lost", manifest.version)
                return None
            if number in self._faults.failing_swaps - self._failed_once:
                self._failed_once.add(number)
                self._watch("swap failed", manifest.version)
                raise WeightError(f"version {manifest.version} was damaged on its way (a fault of the simulation)")
            if not self._is_newer(manifest.version):
                return None
            swap = self._swap = _Swap(manifest.version, mode)
            self._work.set()
            try:
                await self._changed.wait_until(
                    lambda: swap.report is not None or self._liveness.has_ended,
                    clock,
                    _DEADLINE_S,
                    lambda: f"{self._scheduler.in_flight} sequences in flight, to swap to {swap.version}",
                )
            finally:
                self._swap = None
                self._work.set()
            self._liveness.check()
            return swap.report

    async def sleep(self, tags: Sequence[Tag], *, sends_away: bool = False) -> None:
        if sends_away:
            self._liveness.check()
            self._sends_away = True
            self._work.set()
        async with self._updating:
            self._liveness.check()
            await self._let_go("put to sleep")
            self._falling_asleep = tuple(tag for tag in tags if tag not in self._asleep)
            self._work.set()
            await self._changed.wait_until(
                lambda: not self._falling_asleep or self._liveness.has_ended,
                self._runtime.clock,
                _DEADLINE_S,
                lambda: "the engine to sleep",
            )
            self._liveness.check()

    async def wake(self, tags: Sequence[Tag]) -> None:
        async with self._updating:
            self._liveness.check()
            if Tag.WEIGHTS in tags and Tag.WEIGHTS in self._asleep:
                raise EngineError("its weights were dropped: update it")
            await self._runtime.clock.sleep(self._costs.sleep_s)
            self._liveness.check()
            self._asleep = tuple(tag for tag in self._asleep if tag not in tags)
            self._sends_away = self._sends_away and bool(self._asleep)
            self._work.set()
            self._watch("awake", self._asleep)

    async def _let_go(self, then: str) -> None:
        """Until no pin holds the version."""
        await self._pins.all_released(self._runtime.clock, self._version, then, lambda: self._liveness.is_dead)
        self._liveness.check()

    def pin(self) -> Pin:
        self._liveness.check()
        return self._pins.pin(self._version)

    def stats(self) -> EngineStats:
        idle = 0.0 if self._idle_since is None else self._runtime.clock.now() - self._idle_since
        return EngineStats(
            running=self._scheduler.running,
            waiting=self._scheduler.waiting,
            generated_tokens=self._scheduler.generated,
            prefilled_tokens=self._prefilled,
            decode_steps=self._steps,
            busy_s=self._busy_s,
            swap_stall_s=self._stall_s,
            recompute_s=self._recompute_s,
            idle_s=self._idle_s + idle,
            sent_away_tokens=self._scheduler.sent_away,
        )

    async def _serve(self) -> None:
        try:
            while not self._liveness.stopping:
                self._work.clear()
                self._scheduler.end_aborted()
                if self._sends_away:
                    self._scheduler.send_away()
                await self._flip_if_due()
                await self._sleep_if_due()
                self._changed.notify()
                self._admit()
                if tokens := self._scheduler.take_prefill():
                    await self._prefill(tokens)
                elif self._scheduler.running:
                    await self._decode()
                else:
                    await self._rest()
                if (at := self._faults.dies_at) is not None and self._runtime.clock.now() >= at:
                    raise EngineError("it died (a fault of the simulation)")
            self._scheduler.abort_all()
        except asyncio.CancelledError:
            self._fail(EngineError("its runtime was closed"))
            raise
        except Exception as error:
            self._fail(error)
        finally:
            self._changed.notify()

    def _fail(self, error: Exception) -> None:
        self._watch("died", str(error))
        self._liveness.failure = error
        self._scheduler.fail(error)

    def _admit(self) -> None:
        if self._asleep:
            return
        draining = self._swap is not None and self._swap.mode is SwapMode.DRAIN and not self._pins
        self._scheduler.admit(self._version, draining=draining)

    async def _prefill(self, tokens: int) -> None:
        seconds = tokens * self._costs.prefill_s * self._faults.slowness(self._runtime.clock.now())
        self._prefilled += tokens
        self._busy_s += seconds
        await self._runtime.clock.sleep(seconds)

    async def _decode(self) -> None:
        """Steps until a sequence ends, somebody who streams is to hear of it, or there is something else to do."""
        clock, version = self._runtime.clock, self._version
        began = clock.now()
        sequences, steps = self._scheduler.running, self._scheduler.steps()
        step_s = self._costs.step(sequences) * self._faults.slowness(began)
        if (dies_at := self._faults.dies_at) is not None:
            steps = min(steps, int((dies_at - began) / step_s))
            if steps <= 0:
                await clock.sleep(dies_at - began)
                return
        if not self._work.is_set():
            try:
                async with asyncio.timeout_at(began + steps * step_s):
                    await self._work.wait()
            except TimeoutError:
                pass
        # The step that is being computed ends before anything changes.
        done = min(max(math.ceil((clock.now() - began) / step_s - 1e-6), 1), steps)
        await clock.sleep(max(began + done * step_s - clock.now(), 0.0))
        self._steps += done
        self._busy_s += done * step_s
        self._scheduler.advance(version, done)

    async def _flip_if_due(self) -> None:
        swap = self._swap
        if swap is None or swap.report is not None or self._pins:
            return
        in_flight = self._scheduler.in_flight
        if swap.mode is SwapMode.DRAIN and in_flight and not self._asleep:
            return
        began, recomputed = self._runtime.clock.now(), 0
        if swap.mode is SwapMode.RECOMPUTE:
            if self._interrupts:
                self._scheduler.interrupt()
            else:
                recomputed = self._scheduler.suspend()
        await self._runtime.clock.sleep(self._costs.flip_s)
        self._version = swap.version
        self._asleep = tuple(tag for tag in self._asleep if tag is not Tag.WEIGHTS)
        self._watch("swapped", swap.version)
        stall = self._runtime.clock.now() - began
        again_s = recomputed * self._costs.prefill_s
        self._stall_s += stall
        self._recompute_s += again_s
        swap.report = SwapReport(swap.version, stall, again_s, recomputed, in_flight)

    async def _sleep_if_due(self) -> None:
        falling = self._falling_asleep
        if not falling or self._pins:
            return
        self._scheduler.suspend()
        await self._runtime.clock.sleep(self._costs.sleep_s)
        self._asleep, self._falling_asleep = (*self._asleep, *falling), ()
        self._watch("asleep", self._asleep)

    async def _rest(self) -> None:
        """Until there is something to do, or its time has come."""
        clock = self._runtime.clock
        self._idle_since = clock.now()
        try:
            async with asyncio.timeout_at(self._faults.dies_at):
                await self._work.wait()
        except TimeoutError:
            pass
        finally:
            self._idle_s += clock.now() - self._idle_since
            self._idle_since = None

    def _is_newer(self, offered: Version | None) -> bool:
        """Raises WeightError."""
        return is_to_take(offered, self._version, anew=Tag.WEIGHTS in self._asleep)
