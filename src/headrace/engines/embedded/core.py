"""The engine's step, synchronous: schedule, run, postprocess."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.engines.embedded.cache import KeyValueCache
from headrace.engines.embedded.cache_plan import CachePlan, cache_shape
from headrace.engines.embedded.changes import FlipCost, NewWeights
from headrace.engines.embedded.finite_logits import finite_steps, not_finite
from headrace.engines.embedded.fused_sampling.sampler_choice import choose_sampler
from headrace.engines.embedded.kept_run import MOST_WAITING, KeptRun
from headrace.engines.embedded.own_swap_check import decoded, require_right
from headrace.engines.embedded.paged_cache import PagedCache
from headrace.engines.embedded.prefill import prefill_pass
from headrace.engines.embedded.request_state import Sequence
from headrace.engines.embedded.routed import experts_at
from headrace.engines.embedded.runners.choice import choose_runner
from headrace.engines.embedded.runners.runner import Runner
from headrace.engines.embedded.sampler import Kept
from headrace.engines.embedded.scheduler import Chunk, Plan, Scheduler
from headrace.engines.embedded.slot_arrays import DecodeBatch
from headrace.engines.embedded.storage import Copy
from headrace.engines.protocol import EngineError, FinishReason, SwapMode, Tag, TokenChunk
from headrace.models.captures import give_back
from headrace.runtime.progress import mark, working
from headrace.weights.expected import WeightSchema
from headrace.weights.plane import Received, WeightReceiver
from headrace.weights.swap_check import SwapCheck, check_tokens
from headrace.weights.version import Version

logger = logging.getLogger(__name__)
_STEPS_BETWEEN_LOOKS = 8
"""On a GPU the host looks for stop tokens, which costs a sync, once in so many steps."""
_PACE = 32
"""Tokens in a chunk of a stream that need not come soon: each chunk wakes its reader."""

Output = tuple[Sequence, TokenChunk | EngineError]


@dataclass(slots=True)
class Totals:
    """Since the core was made; seconds of the injected clock."""

    generated_tokens: int = 0
    prefilled_tokens: int = 0
    decode_steps: int = 0
    busy_s: float = 0.0
    swap_stall_s: float = 0.0
    recompute_s: float = 0.0
    sent_away_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Run:
    """What consecutive decode steps sampled, [steps, n], in slot order."""

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    kept: KeptRun | None


class EngineCore:
    """Owns the scheduler, the cache and the weights. One caller at a time, on any thread.

    The exceptions: `interrupt`, set and cleared from elsewhere, ends a run of decode steps after the present one;
    `prepare` may run beside `step`.
    """

    def __init__(
        self, model: Any, plan: CachePlan, prefill_tokens: int, version: Version, now: Callable[[], float]
    ) -> None:
        self.version = version
        self.totals = Totals()
        self.interrupt = False
        self.asleep: tuple[Tag, ...] = ()
        """Nothing is computed while anything is."""
        self._now = now
        self._device, self._dtype = model.device, model.dtype
        self._cache_shape = cache_shape(model.config)
        self._schema = WeightSchema(model)
        self._plan = plan
        with torch.inference_mode():
            self._cache = self._cache_of(plan)
            self._runner = choose_runner(model, self._cache)
            self._batch = DecodeBatch(plan.slots, model.config.get_text_config().vocab_size, model.device)
            self._sample = choose_sampler(self._batch.vocab_size, model.device)
        by_length = plan.pages is None and model.device.type == "cpu"
        self.scheduler = Scheduler(plan.slots, prefill_tokens, by_length=by_length, storage=self._cache.storage)
        self._flip_cost: FlipCost | None = None
        self._last_step_end = 0.0
        self._told_at = 1
        """Sequences that give way until the next line about them."""

    def _cache_of(self, plan: CachePlan) -> KeyValueCache:
        kind = KeyValueCache if plan.pages is None else PagedCache
        return kind(self._cache_shape, plan, self._dtype, self._device)

    @torch.inference_mode()
    def capture(self) -> None:
        """Before the first step: see `Runner.capture`. A device compiles other kernels for the small cache of a swap
        check, which the first version would wait for."""
        self._runner.capture()
        if self._device.type == "cuda":
            self.rehearse_check()

    def rehearse_check(self) -> None:
        """Compute what a swap check does, with the present weights, for nobody."""
        tokens = check_tokens(self._batch.vocab_size)
        samples, length = tokens.shape
        decoded(self._beside(samples, length), tokens, 1.0, self._device)

    @torch.inference_mode()
    def step(self) -> list[Output]:
        """One pass of prefill and a run of decode steps. Returns the chunks that are due."""
        begin = self._now()
        plan = self.scheduler.schedule(self.version)
        self._tell_who_gave_way()
        with working("decode_step"):
            run = self._run(plan)
        outputs = self._postprocess(run)
        self._last_step_end = self._now()
        self.totals.busy_s += self._last_step_end - begin
        return outputs

    @torch.inference_mode()
    def abort(self, sequences: Iterable[Sequence], reason: FinishReason = FinishReason.ABORT) -> list[Output]:
        """End these with what they have. INTERRUPTED, they go on elsewhere."""
        outputs: list[Output] = []
        slots = []
        for sequence in sequences:
            if sequence.is_finished:
                continue
            sequence.finish_reason = reason
            if reason is FinishReason.INTERRUPTED:
                self.totals.sent_away_tokens += sequence.cached
            self._clear_partial(sequence)
            if not self.scheduler.remove_waiting(sequence):
                slots.append(self.scheduler.running.index(sequence))
            outputs.append((sequence, sequence.take_chunk()))
        self._retire(slots)
        self._settle_flip_cost()
        return outputs

    @torch.no_grad()
    def prepare(self, receiver: WeightReceiver) -> NewWeights:
        """Receive, check and arrange the newest version beside the present one. Raises WeightError."""

        def made(received: Received) -> NewWeights:
            with working("chunk"):
                tensors, version = self._schema.check(received.tensors), received.manifest.version
                prepared = self._runner.prepare(tensors, lasts=received.lasts)
                if received.check is not None:
                    self.require_right(received.check, version, prepared)
                return NewWeights(version, prepared)

        return receiver.receive_as(made)

    @torch.no_grad()
    def require_right(self, check: SwapCheck, version: Version, prepared: Any = None) -> None:
        """That `prepared`, or the present weights, compute what whoever made `version` did. May run beside `step`.
        Raises WeightError."""
        samples, length = check.tokens.shape
        runner = self._beside(samples, length, prepared)
        require_right(runner, check, version, self._dtype, self._device)

    def _beside(self, samples: int, length: int, prepared: Any = None) -> Runner:
        """With these weights, or the present ones, and a cache of its own, which is empty, of that size."""
        cache = self._cache_of(self._plan.of_size(samples, length))
        cache.hold(samples, length)
        return self._runner.beside(cache, prepared)

    @torch.inference_mode()
    def flip(self, new: NewWeights, mode: SwapMode) -> FlipCost:
        """Exchange the weights between two steps. What is returned is complete once its `pending` is empty.

        With `drain` nothing may be in flight.
        """
        in_flight = self.scheduler.in_flight
        asleep, self.asleep = self.asleep, tuple(tag for tag in self.asleep if tag is not Tag.WEIGHTS)
        begin = self._last_step_end if in_flight and not asleep else self._now()
        self._clear_partial()
        if mode is SwapMode.KEEP:
            self.scheduler.restart_partial()
        else:
            self.scheduler.interrupt()
        self._runner.flip(new.prepared)
        self._synchronize()
        self.version = new.version
        # What waits for the cache is computed again once that is awake, which is no cost of the swap.
        pending = [] if mode is SwapMode.KEEP or self.asleep else in_flight
        self._flip_cost = FlipCost(self._now() - begin, len(in_flight), pending)
        self.totals.swap_stall_s += self._flip_cost.flip_s
        return self._flip_cost

    @torch.inference_mode()
    def sleep(self, tags: Iterable[Tag]) -> None:
        """Give this memory back, between two steps. See `Engine.sleep`."""
        wanted = [tag for tag in tags if tag not in self.asleep]
        if Tag.KV in wanted:
            self.scheduler.interrupt()
            self._runner.forget_cache()
            self._cache.release()
        if Tag.WEIGHTS in wanted:
            self._clear_partial()
            self.scheduler.restart_partial()
            self._runner.drop()
        self.asleep = (*self.asleep, *wanted)
        self._hand_back()

    @torch.inference_mode()
    def wake(self, tags: Iterable[Tag]) -> None:
        """Have this memory again. Weights come by `flip`. Raises EngineError, and sleeps on."""
        wanted = [tag for tag in tags if tag in self.asleep]
        if Tag.WEIGHTS in wanted:
            raise EngineError(f"its weights were dropped when it had {self.version}: `update` brings the newest")
        if Tag.KV in wanted:
            try:
                self._cache.allocate()
            except RuntimeError as error:  # as torch says that there is no memory
                self._cache.release()
                self._hand_back()
                raise EngineError(f"there is no room for its KV cache: {error}") from error
        self.asleep = tuple(tag for tag in self.asleep if tag not in wanted)

    def _hand_back(self) -> None:
        """What is free on a device, to whoever else computes there."""
        self._synchronize()
        give_back(self._device)

    def _run(self, plan: Plan) -> _Run | None:
        self._cache.begin()
        self._copy(plan.copies)
        if plan.chunks:
            self._prefill(plan.chunks)
        self._copy(plan.late_copies)
        self._settle_flip_cost()
        return self._decode(plan.steps) if plan.steps else None

    def _prefill(self, chunks: tuple[Chunk, ...]) -> None:
        begin = self._now()
        self._cache.reserve(max(chunk.stop for chunk in chunks))
        mark("decode_step")
        self._runner.prefill(prefill_pass(chunks, self._device))
        total = sum(chunk.stop - chunk.start for chunk in chunks)
        self.totals.prefilled_tokens += total
        if self._flip_cost is not None and self._flip_cost.pending:
            again = sum(c.stop - c.start for c in chunks if c.sequence in self._flip_cost.pending)
            self._synchronize()
            seconds = (self._now() - begin) * again / total
            self._flip_cost.prefill_s += seconds
            self._flip_cost.recomputed_tokens += again
            self.totals.swap_stall_s += seconds
            self.totals.recompute_s += seconds

    def _decode(self, steps: int) -> _Run:
        """At most so many steps; fewer when a sequence ends or somebody interrupts."""
        self._copy(self.scheduler.arrange())
        batch, running = self._batch, self.scheduler.running
        batch.load(running)
        length = max(sequence.length for sequence in running)
        self._cache.reserve(length + steps - 1)
        tokens: list[torch.Tensor] = []
        logprobs: list[torch.Tensor] = []
        kept: list[Kept] = []
        waiting = 0
        for step in range(steps):
            mark("decode_step")
            logits = self._runner.decode(batch.tokens, batch.positions, length + step)
            sampled = self._sample(logits, batch.rows, batch.positions + 1)
            batch.advance(sampled.tokens)
            tokens.append(sampled.tokens)
            logprobs.append(sampled.logprobs)
            if sampled.kept is not None and batch.wants_kept:
                kept.append(sampled.kept)
                waiting += sampled.kept.ids.nbytes
            if self.interrupt or waiting > MOST_WAITING or (step + 1 < steps and self._sees_stop(tokens)):
                break
        return _Run(*_on_host(tokens, logprobs), KeptRun.of(kept, batch.vocab_size) if kept else None)

    def _sees_stop(self, tokens: list[torch.Tensor]) -> bool:
        """Whether a stop token is among those not looked at yet."""
        if self._device.type == "cpu":
            return bool(self._batch.stops(tokens[-1].numpy()).any())
        if len(tokens) % _STEPS_BETWEEN_LOOKS:
            return False
        fresh = torch.stack(tokens[-_STEPS_BETWEEN_LOOKS:]).cpu().numpy()
        return bool(self._batch.stops(fresh).any())

    def _postprocess(self, run: _Run | None) -> list[Output]:
        """Give the sequences their tokens up to their stop, and the slots of those that ended to others."""
        if run is None:
            return []
        outputs: list[Output] = []
        ended = []
        steps = len(run.tokens)
        stops = self._batch.stops(run.tokens)
        stopped = [bool(hit) for hit in np.any(stops, axis=0)]
        finite = finite_steps(run.logprobs)
        counts = [int(stops[:, slot].argmax()) + 1 if hit else steps for slot, hit in enumerate(stopped)]
        experts = self._experts(counts)
        for slot, sequence in enumerate(self.scheduler.running):
            count = counts[slot]
            if finite[slot] < steps:
                self._cache.clear(slot, sequence.length + steps)
            if finite[slot] < count:
                outputs.append((sequence, not_finite(sequence, int(finite[slot]), self.version)))
                sequence.finish_reason = FinishReason.ABORT
                ended.append(slot)
                continue
            kept = run.kept.of_slot(slot, count) if run.kept is not None and sequence.wants_kept else None
            sequence.append(run.tokens[:count, slot], run.logprobs[:count, slot], self.version, stopped[slot], kept)
            if slot in experts:
                sequence.add_experts(experts[slot])
            self.totals.generated_tokens += count
            if sequence.is_finished:
                ended.append(slot)
            if sequence.is_finished or self._is_due(sequence):
                outputs.append((sequence, sequence.take_chunk()))
        self.totals.decode_steps += steps
        self._retire(ended)
        return outputs

    def _experts(self, counts: list[int]) -> dict[int, NDArray[np.unsignedinteger]]:
        """By slot, of the running that want them: of the tokens that were fed since they were last told, those before
        the last of the `counts` that each has sampled now."""
        running = self.scheduler.running
        if self._cache.experts is None:
            return {}
        places = [
            (slot, routed, sequence.length + count - 1)
            for slot, (sequence, count) in enumerate(zip(running, counts, strict=True))
            if (routed := sequence.routed) is not None
        ]
        return dict(zip((slot for slot, _, _ in places), experts_at(self._cache, places), strict=True))

    @staticmethod
    def _is_due(sequence: Sequence) -> bool:
        """Whether a chunk of a sequence that goes on is to be handed out."""
        asked = sequence.request
        return asked.stream and (asked.soon or sequence.sampled - sequence.emitted >= _PACE)

    def _tell_who_gave_way(self) -> None:
        """At the first, the tenth, the hundredth …"""
        if (count := self.scheduler.gave_way) >= self._told_at:
            self._told_at *= 10
            logger.warning(
                "%d times a sequence had to wait again, to be computed again, as the KV cache had no room for all that "
                "run; raise engine.kv_cache_gib or lower engine.max_concurrent_sequences",
                count,
            )

    def _retire(self, slots: list[int]) -> None:
        partial = self.scheduler.partial
        self._copy(self.scheduler.retire(slots))
        if partial is not None and slots:
            # It moved, and no decode step has told it to be finite. Of pages nothing is left there: they moved with it.
            self._cache.clear(partial[0], partial[1].cached)

    def _clear_partial(self, only: Sequence | None = None) -> None:
        """Before what is partly prefilled gives up its slot."""
        partial = self.scheduler.partial  # none while the cache is asleep
        if partial is not None and only in (None, partial[1]):
            self._cache.clear(partial[0], partial[1].cached)

    def _copy(self, copies: Iterable[Copy]) -> None:
        for copy in copies:
            self._cache.copy(copy)

    def _settle_flip_cost(self) -> None:
        """Strike out the sequences that are in the cache again, or have ended."""
        if self._flip_cost is not None and self._flip_cost.pending:
            running = self.scheduler.running
            self._flip_cost.pending = [s for s in self._flip_cost.pending if not s.is_finished and s not in running]

    def _synchronize(self) -> None:
        """With what this lane has handed out; the others' work on the device goes on."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


def _on_host(tokens: list[torch.Tensor], logprobs: list[torch.Tensor]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Both [steps, n], by one wait for the device."""
    bits = torch.stack(logprobs).view(torch.int32)
    both = torch.stack([torch.stack(tokens).to(torch.int32), bits]).cpu().numpy()
    return both[0].astype(np.int64), both[1].view(np.float32)
