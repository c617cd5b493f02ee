"""An engine that computes nothing: it charges modelled seconds, and answers what follows from the request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

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
from headrace.engines.simulated_answers import Answers
from headrace.models.simulated import logprobs_of
from headrace.runtime.protocol import Runtime
from headrace.runtime.signal import Signal
from headrace.weights.plane import WeightError, WeightReceiver
from headrace.weights.version import INITIAL, Version

_WEIGHTS_LANE = "weights"
_DEADLINE_S = 3600.0
"""Of waits for sequences in flight."""

Watch = Callable[[str, object], None]
"""Told what an engine does: a word, and what of."""


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """What an engine takes, in seconds."""

    slots: int = 64
    max_context: int = 1 << 20
    prefill_s: float = 2e-5
    """Of a token."""
    step_s: float = 0.02
    """Of a decode step with one sequence."""
    sequence_s: float = 1e-4
    """Of each further sequence in it."""
    receive_s: float = 0.5
    """Of new weights; decoding goes on meanwhile."""
    flip_s: float = 0.05
    """In which the weights are exchanged, and nothing is decoded."""
    sleep_s: float = 0.1
    """To give memory back, or to have it again."""
    stream_steps: int = 64
    """Decode steps of which those who stream hear together."""

    def step(self, sequences: int) -> float:
        return self.step_s + (sequences - 1) * self.sequence_s


@dataclass(frozen=True, slots=True)
class EngineFaults:
    """What goes wrong with an engine, by the seconds of the clock, and by the number of a version."""

    dies_at: float | None = None
    late_swaps: dict[int, float] = field(default_factory=dict)
    """Seconds that receiving a version takes longer."""
    failing_swaps: frozenset[int] = frozenset()
    """Versions that cannot be received the first time."""
    lost_swaps: frozenset[int] = frozenset()
    """Versions that it receives the first time, and loses: nobody is told."""
    slow: tuple[tuple[float, float, float], ...] = ()
    """(from, to, how many times slower)."""

    def slowness(self, now: float) -> float:
        return next((times for begin, end, times in self.slow if begin <= now < end), 1.0)


NO_FAULTS = EngineFaults()


@dataclass(eq=False, slots=True)
class _Sequence:
    request: GenerateRequest
    left: int
    """Tokens that are still to be sampled."""
    stops: bool
    """Whether the last of them stops it; else a limit does."""
    chunks: asyncio.Queue[TokenChunk | Exception] = field(default_factory=asyncio.Queue)
    sampled: int = 0
    told: int = 0
    """Of the sampled ones, those that were handed over."""
    spans: list[tuple[Version, int]] = field(default_factory=list)
    """Version, and tokens that it sampled, of those that were not handed over yet."""
    in_flight: bool = False
    cached: bool = False
    is_finished: bool = False


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
        costs: EngineCosts = EngineCosts(),
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
        self._answers = answers
        self._faults = faults
        self._interrupts = interrupts
        self._watch = watch
        self._version = version
        self._liveness = Liveness()
        self._task: asyncio.Task[None] | None = None
        self._clients: dict[str, _Sequence] = {}
        self._queue: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._to_prefill = 0
        """Tokens."""
        self._aborted: list[_Sequence] = []
        self._swap: _Swap | None = None
        self._updating = asyncio.Lock()
        self._asleep: tuple[Tag, ...] = ()
        self._falling_asleep: tuple[Tag, ...] = ()
        self._sends_away = False
        self._sent_away = 0
        self._failed_once: set[int] = set()
        self._work = asyncio.Event()
        self._changed = Signal()
        self._pins = Pins(self._changed, self._work.set)
        self._generated = self._prefilled = self._steps = 0
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
        room = self._costs.max_context - len(request.prompt)
        if not len(request.prompt) or room <= 0:
            raise RequestError(f"request {request.request_id!r}: {len(request.prompt)} tokens have no place")
        if request.request_id in self._clients:
            raise RequestError(f"request id {request.request_id!r} is in use; give each request its own")
        most = min(request.sampling.max_new_tokens, room)
        left = self._answers.left(request, most)
        sequence = _Sequence(request, most if left is None else left, left is not None)
        self._clients[request.request_id] = sequence
        self._queue.append(sequence)
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
            self._clients.pop(request.request_id, None)

    def abort(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            if (sequence := self._clients.get(request_id)) is not None:
                self._aborted.append(sequence)
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
                    lambda: f"{len(self._in_flight())} sequences in flight, to swap to {swap.version}",
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
            running=len(self._running),
            waiting=len(self._queue),
            generated_tokens=self._generated,
            prefilled_tokens=self._prefilled,
            decode_steps=self._steps,
            busy_s=self._busy_s,
            swap_stall_s=self._stall_s,
            recompute_s=self._recompute_s,
            idle_s=self._idle_s + idle,
            sent_away_tokens=self._sent_away,
        )

    async def _serve(self) -> None:
        try:
            while not self._liveness.stopping:
                self._work.clear()
                self._end_aborted()
                if self._sends_away:
                    self._send_away()
                await self._flip_if_due()
                await self._sleep_if_due()
                self._changed.notify()
                self._admit()
                if self._to_prefill:
                    await self._prefill()
                elif self._running:
                    await self._decode()
                else:
                    await self._rest()
                if (at := self._faults.dies_at) is not None and self._runtime.clock.now() >= at:
                    raise EngineError("it died (a fault of the simulation)")
            self._aborted = list(self._clients.values())
            self._end_aborted()
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
        for sequence in self._clients.values():
            sequence.chunks.put_nowait(error)

    def _admit(self) -> None:
        """Those that wait into free slots, first come first served."""
        if not self._queue or len(self._running) >= self._costs.slots or self._asleep:
            return
        draining = self._swap is not None and self._swap.mode is SwapMode.DRAIN and not self._pins
        passed_over: list[_Sequence] = []
        while self._queue and len(self._running) < self._costs.slots:
            sequence = self._queue.popleft()
            if not self._may_start(sequence, draining):
                passed_over.append(sequence)
                continue
            if not sequence.cached:
                self._to_prefill += len(sequence.request.prompt) + sequence.sampled - 1
            sequence.in_flight = sequence.cached = True
            self._running.append(sequence)
        self._queue.extendleft(reversed(passed_over))

    def _may_start(self, sequence: _Sequence, draining: bool) -> bool:
        if draining and not sequence.in_flight:
            return False
        floor = sequence.request.min_version
        return floor is None or self._version.serves(floor)

    async def _prefill(self) -> None:
        tokens, self._to_prefill = self._to_prefill, 0
        seconds = tokens * self._costs.prefill_s * self._faults.slowness(self._runtime.clock.now())
        self._prefilled += tokens
        self._busy_s += seconds
        await self._runtime.clock.sleep(seconds)

    async def _decode(self) -> None:
        """Steps until a sequence ends, somebody who streams is to hear of it, or there is something else to do."""
        clock, version = self._runtime.clock, self._version
        began = clock.now()
        steps = min(sequence.left for sequence in self._running)
        untold = max((s.sampled - s.told for s in self._running if s.request.stream), default=None)
        if untold is not None:
            steps = min(steps, self._costs.stream_steps - untold)
        step_s = self._costs.step(len(self._running)) * self._faults.slowness(began)
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
        done = min(max(int(np.ceil((clock.now() - began) / step_s - 1e-6)), 1), steps)
        await clock.sleep(max(began + done * step_s - clock.now(), 0.0))
        self._steps += done
        self._busy_s += done * step_s
        self._generated += done * len(self._running)
        self._hand_over(version, done)

    def _hand_over(self, version: Version, done: int) -> None:
        """Each of the running has so many tokens more."""
        left = []
        for sequence in self._running:
            sequence.sampled += done
            sequence.left -= done
            sequence.spans.append((version, done))
            if not sequence.left:
                self._end(sequence, FinishReason.STOP if sequence.stops else FinishReason.LENGTH)
                continue
            if sequence.request.stream and sequence.sampled - sequence.told >= self._costs.stream_steps:
                sequence.chunks.put_nowait(self._chunk(sequence, None))
            left.append(sequence)
        self._running = left

    def _end(self, sequence: _Sequence, reason: FinishReason) -> None:
        sequence.is_finished = True
        sequence.chunks.put_nowait(self._chunk(sequence, reason))
        self._watch(reason.value, sequence.request.request_id)

    def _chunk(self, sequence: _Sequence, reason: FinishReason | None) -> TokenChunk:
        """What was not handed over yet."""
        begin = len(sequence.request.prompt) + sequence.told
        end = len(sequence.request.prompt) + sequence.sampled
        tokens = self._answers.tokens(sequence.request, begin, end, ended=reason is FinishReason.STOP)
        counts = [count for _, count in sequence.spans]
        versions = np.repeat(np.array([version.number for version, _ in sequence.spans], np.int32), counts)
        branches = np.repeat(np.array([version.branch for version, _ in sequence.spans], np.int32), counts)
        sequence.told = sequence.sampled
        sequence.spans.clear()
        return TokenChunk(tokens, logprobs_of(tokens, np.arange(begin, end)), versions, branches, reason)

    def _end_aborted(self) -> None:
        aborted, self._aborted = self._aborted, []
        for sequence in aborted:
            if sequence.is_finished:
                continue
            if sequence in self._running:
                self._running.remove(sequence)
            elif sequence in self._queue:
                self._queue.remove(sequence)
            self._end(sequence, FinishReason.ABORT)

    def _send_away(self) -> None:
        """All that it has goes on elsewhere, with the tokens that there are."""
        for sequence in (*self._running, *self._queue):
            if sequence.cached:
                self._sent_away += len(sequence.request.prompt) + sequence.sampled
            self._end(sequence, FinishReason.INTERRUPTED)
        self._running, self._to_prefill = [], 0
        self._queue.clear()

    def _in_flight(self) -> list[_Sequence]:
        return self._running + [sequence for sequence in self._queue if sequence.in_flight]

    async def _flip_if_due(self) -> None:
        swap = self._swap
        if swap is None or swap.report is not None or self._pins:
            return
        in_flight = self._in_flight()
        if swap.mode is SwapMode.DRAIN and in_flight and not self._asleep:
            return
        began, recomputed = self._runtime.clock.now(), 0
        if swap.mode is SwapMode.RECOMPUTE:
            recomputed = self._interrupt(in_flight)
        await self._runtime.clock.sleep(self._costs.flip_s)
        self._version = swap.version
        self._asleep = tuple(tag for tag in self._asleep if tag is not Tag.WEIGHTS)
        self._watch("swapped", swap.version)
        stall = self._runtime.clock.now() - began
        again_s = recomputed * self._costs.prefill_s
        self._stall_s += stall
        self._recompute_s += again_s
        swap.report = SwapReport(swap.version, stall, again_s, recomputed, len(in_flight))

    async def _sleep_if_due(self) -> None:
        falling = self._falling_asleep
        if not falling or self._pins:
            return
        for sequence in self._running:  # all of them are prefilled again
            sequence.cached = False
        self._queue.extendleft(reversed(self._running))
        self._running, self._to_prefill = [], 0
        await self._runtime.clock.sleep(self._costs.sleep_s)
        self._asleep, self._falling_asleep = (*self._asleep, *falling), ()
        self._watch("asleep", self._asleep)

    def _interrupt(self, in_flight: list[_Sequence]) -> int:
        """Their keys and values are of the old weights. How many tokens are prefilled again."""
        if self._interrupts:
            for sequence in in_flight:
                if sequence in self._queue:
                    self._queue.remove(sequence)
                self._end(sequence, FinishReason.INTERRUPTED)
            self._running.clear()
            return 0
        for sequence in in_flight:
            sequence.cached = False
        self._queue.extendleft(reversed(self._running))
        self._running.clear()
        return sum(len(sequence.request.prompt) + sequence.sampled - 1 for sequence in in_flight)

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
