"""The asyncio front of the embedded engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import Any

import torch

from headrace.config import EngineConfig
from headrace.engines.embedded.cache_plan import CachePlan, CacheRoom, is_paged, plan_cache
from headrace.engines.embedded.changes import Move, Swap
from headrace.engines.embedded.core import EngineCore, Output
from headrace.engines.embedded.request_state import Sequence
from headrace.engines.embedded.skeleton import Skeleton
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
from headrace.engines.validate import check_request
from headrace.runtime.protocol import Services
from headrace.runtime.signal import Signal
from headrace.weights.plane import WeightError, WeightReceiver
from headrace.weights.version import INITIAL, Version

logger = logging.getLogger(__name__)

LANE = "engine"
"""Unless another is given."""
_WEIGHTS_LANE = "weights"
_SWAP_DEADLINE_S = 3600.0
_STOP_DEADLINE_S = 60.0


@dataclass(slots=True)
class _Client:
    """A request and whoever reads its chunks."""

    sequence: Sequence
    chunks: asyncio.Queue[TokenChunk | Exception]


class EmbeddedEngine:
    """See `Engine`. The core runs on a lane of its own; new weights are received on the lane `weights`.

    The event loop and the core take turns: between two calls of `EngineCore.step` the loop hands over what came in
    meanwhile. It ends a running call early by `EngineCore.interrupt`.
    """

    quiet = None

    def __init__(
        self,
        model: Any,
        *,
        config: EngineConfig,
        runtime: Services,
        version: Version = INITIAL,
        lane: str = LANE,
        cache: CachePlan | CacheRoom | None = None,
        captures: bool = True,
    ) -> None:
        """`model` (a Hugging Face causal language model, on its device) belongs to the engine from here on. `cache`: of
        this size, or as there is room, which is looked at when the engine starts; unless given, as `plan_cache` has it
        then. `captures`: all its CUDA graphs when it starts; else when they are needed, as of one that sleeps by turns,
        with whose cache they go."""
        self._model: Any = model
        self._config = config
        self._runtime = runtime
        self._lane = lane
        self._version = version
        self._vocab_size = int(model.config.get_text_config().vocab_size)
        self._plan: CachePlan | None = None
        self._planned = cache
        self._captures = captures
        self._core: EngineCore | None = None
        self._task: asyncio.Task[None] | None = None
        self._liveness = Liveness()
        self._final: EngineStats | None = None
        """Of an engine that died."""
        self._killed: str | None = None
        self._skeleton: Skeleton | None = None
        self._clients: dict[str, _Client] = {}
        self._arrived: list[Sequence] = []
        self._to_abort: list[Sequence] = []
        self._sends_away = False
        """Whoever asks is to ask elsewhere, since it sleeps, or is about to."""
        self._swap: Swap | None = None
        self._move: Move | None = None
        self._updating = asyncio.Lock()
        self._changed = Signal()
        self._pins = Pins(self._changed, self._nudge)
        self._is_flipping = False
        self._work = asyncio.Event()
        self._idle_s = 0.0
        self._idle_since: float | None = None

    @property
    def version(self) -> Version:
        return self._version if self._core is None else self._core.version

    @property
    def rests(self) -> bool:
        return bool(self.asleep)

    @property
    def asleep(self) -> tuple[Tag, ...]:
        return () if self._core is None else self._core.asleep

    @property
    def gives_kept_sets(self) -> bool:
        return True

    @property
    def failure(self) -> Exception | None:
        return self._liveness.failure

    @property
    def slots(self) -> int:
        """Raises EngineError before `start`: how many fit is worked out there."""
        if self._plan is None:
            raise EngineError("the engine was not started: it has no slots yet")
        return self._plan.slots

    async def start(self) -> None:
        """Raises ConfigError if the KV cache does not fit, EngineError if the architecture is not supported."""
        if self._task is not None:
            raise EngineError("the engine was started already")
        self._core = await self._runtime.compute(self._lane, self._build)
        self._liveness.started = True
        self._task = self._runtime.spawn(self._serve(self._core), "embedded engine")

    async def stop(self) -> None:
        if self._task is None:
            return
        self._liveness.stopping = True
        self._nudge()
        await self._runtime.clock.wait_for(self._task, _STOP_DEADLINE_S, "the engine's last decode step")
        self._final = self.stats()
        self._model, self._core, self._task = None, None, None

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        core = self._serving()
        if self._plan is None:
            raise EngineError("the engine was not started")
        check_request(request, self._vocab_size, self._plan.max_context)
        if request.request_id in self._clients:
            raise RequestError(f"request id {request.request_id!r} is in use; give each request its own")
        client = _Client(Sequence(request, self._plan.max_context), asyncio.Queue())
        self._clients[request.request_id] = client
        self._arrived.append(client.sequence)
        self._nudge(interrupt=core.scheduler.has_free_slot)
        try:
            while True:
                chunk = await client.chunks.get()
                if isinstance(chunk, Exception):
                    raise EngineError(f"request {request.request_id!r} was lost: {chunk}") from chunk
                yield chunk
                if chunk.finish_reason is not None:
                    return
        finally:
            if not client.sequence.is_finished:
                self.abort([request.request_id])
            self._clients.pop(request.request_id, None)

    def abort(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            client = self._clients.get(request_id)
            if client is not None:
                self._to_abort.append(client.sequence)
                self._nudge()

    async def update(self, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
        """Raises WeightError, and leaves the loaded version, if the newest is damaged, does not fit or is older."""
        clock = self._runtime.clock
        async with self._updating:
            core = self._serving()
            if not self._is_newer(receiver.latest()):
                return None
            await self._let_go("replaced")
            new = await self._runtime.compute(_WEIGHTS_LANE, core.prepare, receiver)
            if not self._is_newer(new.version):
                return None
            swap = Swap(new, mode)
            self._swap = swap
            self._nudge()
            try:
                await self._changed.wait_until(
                    lambda: swap.is_done or self._liveness.has_ended,
                    clock,
                    _SWAP_DEADLINE_S,
                    lambda: f"{len(core.scheduler.in_flight)} sequences in flight, to swap to {new.version}",
                )
            finally:
                self._swap = None
                core.scheduler.admitting = True
                self._nudge()
            self._serving()
            return swap.report()

    async def sleep(self, tags: Several[Tag], *, sends_away: bool = False) -> None:
        if sends_away:  # before anything else: it may be swapping, and wait for those in flight
            self._serving()
            self._sends_away = True
            self._nudge()
        async with self._updating:
            core = self._serving()
            await self._let_go("put to sleep")
            await self._between_steps(lambda: core.sleep(tags), f"{', '.join(tags)} to be put to sleep")

    async def wake(self, tags: Several[Tag]) -> None:
        async with self._updating:
            core = self._serving()
            await self._between_steps(lambda: core.wake(tags), f"{', '.join(tags)} to be woken")
            self._sends_away = self._sends_away and bool(core.asleep)

    async def _let_go(self, then: str) -> None:
        """Until no pin holds the version."""
        await self._pins.all_released(self._runtime.clock, self.version, then, lambda: self._liveness.is_dead)
        self._serving()

    async def _between_steps(self, make: Callable[[], None], what: str) -> None:
        """Raises EngineError, which `make` may raise too."""
        move = self._move = Move(make)
        self._nudge()
        try:
            await self._changed.wait_until(
                lambda: move.is_done or self._liveness.has_ended,
                self._runtime.clock,
                _SWAP_DEADLINE_S,
                lambda: what,
            )
        finally:
            self._move = None
        self._serving()
        if move.error is not None:
            raise move.error

    def pin(self) -> Pin:
        """See `Engine.pin`. Raises EngineError also in the moment in which weights are exchanged."""
        self._serving()
        if self._is_flipping:
            raise EngineError(f"{self.version} is just being replaced")
        return self._pins.pin(self.version)

    def kill(self, reason: str) -> None:
        """Die of `reason` before the next step: what a fault of the engine's own does, for whoever must see one."""
        self._killed = reason
        self._nudge()

    async def successor(self, receiver: WeightReceiver) -> EmbeddedEngine:
        """Another engine in the place of this one, which died: with the newest whole version, started. Nothing is
        loaded: the model's modules are kept, without their weights. Raises WeightError, EngineError."""
        skeleton = self._skeleton
        if skeleton is None:
            raise EngineError("the engine never started: there is nothing to begin another from")
        version, model, check = await self._runtime.compute(_WEIGHTS_LANE, skeleton.received, receiver)
        other = EmbeddedEngine(
            model,
            config=self._config,
            runtime=self._runtime,
            version=version,
            lane=self._lane,
            cache=self._plan,
            captures=self._captures,
        )
        await other.start()
        if check is not None:
            try:
                await self._runtime.compute(_WEIGHTS_LANE, other._serving().require_right, check, version)
            except WeightError:
                await other.stop()
                raise
        return other

    def stats(self) -> EngineStats:
        core = self._core
        if core is None:
            return self._final or EngineStats(0, 0, 0, 0, 0, 0.0, 0.0)
        totals = core.totals
        return EngineStats(
            running=len(core.scheduler.running),
            waiting=core.scheduler.waiting + len(self._arrived),
            generated_tokens=totals.generated_tokens,
            prefilled_tokens=totals.prefilled_tokens,
            decode_steps=totals.decode_steps,
            busy_s=totals.busy_s,
            swap_stall_s=totals.swap_stall_s,
            recompute_s=totals.recompute_s,
            sent_away_tokens=totals.sent_away_tokens,
            gave_way=core.scheduler.gave_way,
            idle_s=self._idle_s + (0.0 if self._idle_since is None else self._runtime.clock.now() - self._idle_since),
        )

    def _build(self) -> EngineCore:
        model, config = self._model, self._config
        self._skeleton = Skeleton(model)
        dtype = model.dtype if config.dtype is None else getattr(torch, config.dtype)
        # Not buffers: rotary frequencies that are rounded are wrong by more at each position.
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        model.eval().requires_grad_(False)
        device = model.device
        if isinstance(self._planned, CachePlan):
            plan = self._planned
        elif self._planned is not None:
            total = torch.cuda.mem_get_info(device)[1]
            plan = self._planned.plan(model.config, config, dtype, total, paged=is_paged(device, model.config))
        else:
            kept, free = (torch.float32, None) if device.type == "cpu" else (dtype, torch.cuda.mem_get_info(device)[0])
            plan = plan_cache(model.config, config, kept, free, paged=is_paged(device, model.config))
        self._plan = plan
        self._model = None  # what it is needed for, the runner holds; its weights may be there a second time
        core = EngineCore(model, plan, config.prefill_tokens_per_step, self._version, self._runtime.clock.now)
        if self._captures:
            core.capture()
        return core

    def _serving(self) -> EngineCore:
        """The core. Raises EngineError if the engine does not serve."""
        self._liveness.check()
        assert self._core is not None
        return self._core

    def _nudge(self, interrupt: bool = True) -> None:
        """There is something to hand over."""
        self._work.set()
        if interrupt and self._core is not None:
            self._core.interrupt = True

    async def _serve(self, core: EngineCore) -> None:
        """Until it is told to stop, which may be before this begins."""
        try:
            while not self._liveness.stopping:
                self._work.clear()
                core.interrupt = False
                if self._killed is not None:
                    raise EngineError(self._killed)
                await self._hand_over(core)
                await self._flip_if_due(core)
                await self._move_if_due()
                self._changed.notify()
                if not core.asleep and core.scheduler.can_progress(core.version):
                    self._deliver(await self._runtime.compute(self._lane, core.step))
                else:
                    await self._rest()
            self._to_abort = [client.sequence for client in self._clients.values()]
            await self._hand_over(core)
        except asyncio.CancelledError:
            self._fail(EngineError("its runtime was closed"))
            raise
        except Exception as error:
            self._fail(error)
        finally:
            self._changed.notify()

    async def _rest(self) -> None:
        """Until there is something to do."""
        clock = self._runtime.clock
        self._idle_since = clock.now()
        try:
            await self._work.wait()
        finally:
            self._idle_s += clock.now() - self._idle_since
            self._idle_since = None

    async def _hand_over(self, core: EngineCore) -> None:
        arrived, self._arrived = self._arrived, []
        for sequence in arrived:
            core.scheduler.add(sequence)
        if self._sends_away and (left := [one.sequence for one in self._clients.values()]):
            self._deliver(await self._runtime.compute(self._lane, core.abort, left, FinishReason.INTERRUPTED))
        if self._to_abort:
            aborted, self._to_abort = self._to_abort, []
            self._deliver(await self._runtime.compute(self._lane, core.abort, aborted))

    async def _flip_if_due(self, core: EngineCore) -> None:
        swap = self._swap
        if swap is None or swap.cost is not None:
            return
        drains = swap.mode is SwapMode.DRAIN and not core.asleep and not self._pins
        core.scheduler.admitting = not drains  # while the version is held, whoever holds it is served
        if self._pins or (drains and core.scheduler.in_flight):
            return
        self._is_flipping = True
        try:
            swap.cost = await self._runtime.compute(self._lane, core.flip, swap.new, swap.mode)
        finally:
            self._is_flipping = False
        core.scheduler.admitting = True

    async def _move_if_due(self) -> None:
        move = self._move
        if move is None or move.is_done or self._pins:
            return
        try:
            await self._runtime.compute(self._lane, move.make)
        except EngineError as error:
            move.error = error
        move.is_done = True

    def _deliver(self, outputs: list[Output]) -> None:
        for sequence, chunk in outputs:
            client = self._clients.get(sequence.request.request_id)
            if client is not None and client.sequence is sequence:
                client.chunks.put_nowait(chunk)

    def _fail(self, error: Exception) -> None:
        """The engine is dead: nobody may wait for it. What was sampled is handed out, its memory is free."""
        if not isinstance(error, EngineError):
            logger.error("an engine died", exc_info=error)
        self._liveness.die(error)
        for client in self._clients.values():
            if client.sequence.request.stream and client.sequence.sampled > client.sequence.emitted:
                client.chunks.put_nowait(client.sequence.take_chunk())
            client.chunks.put_nowait(error)
        if self._core is not None:
            self._final, self._version, self._core = self.stats(), self._core.version, None

    def _is_newer(self, offered: Version | None) -> bool:
        """Raises WeightError."""
        return is_to_take(offered, self.version, anew=Tag.WEIGHTS in self.asleep)
