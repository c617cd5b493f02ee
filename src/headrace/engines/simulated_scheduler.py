"""Which sequences of a simulated engine wait, which are decoded, and what each of them gets.

It knows no clock: the engine tells it how many decode steps have passed, and under which version. Every sequence ends
once, with a last chunk that has a finish reason, or with an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from headrace.engines.protocol import FinishReason, GenerateRequest, RequestError, TokenChunk
from headrace.engines.simulated_answers import Answers
from headrace.engines.simulated_costs import EngineCosts
from headrace.models.simulated import logprobs_of
from headrace.weights.version import Version


@dataclass(eq=False, slots=True)
class Sequence:
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

    @property
    def tokens(self) -> int:
        """Of prompt and response so far."""
        return len(self.request.prompt) + self.sampled


class SimulatedScheduler:
    def __init__(self, costs: EngineCosts, answers: Answers, ended: Callable[[FinishReason, str], None]) -> None:
        """`ended`: told of each sequence that ends why, and the id of its request."""
        self._costs = costs
        self._answers = answers
        self._ended = ended
        self._sequences: dict[str, Sequence] = {}
        """Those of which somebody still reads, by request id."""
        self._queue: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._to_prefill = 0
        """Tokens."""
        self._aborted: list[Sequence] = []
        self.generated = self.sent_away = 0
        """Tokens; see `EngineStats`."""

    @property
    def running(self) -> int:
        """Sequences that are decoded together."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """Sequences that were begun, and have not ended."""
        return len(self._begun())

    def add(self, request: GenerateRequest) -> Sequence:
        """Raises RequestError."""
        room = self._costs.max_context - len(request.prompt)
        if not len(request.prompt) or room <= 0:
            raise RequestError(f"request {request.request_id!r}: {len(request.prompt)} tokens have no place")
        if request.request_id in self._sequences:
            raise RequestError(f"request id {request.request_id!r} is in use; give each request its own")
        most = min(request.sampling.max_new_tokens, room)
        left = self._answers.left(request, most)
        sequence = Sequence(request, most if left is None else left, left is not None)
        self._sequences[request.request_id] = sequence
        self._queue.append(sequence)
        return sequence

    def leave(self, sequence: Sequence) -> None:
        """Nobody reads of it any more."""
        self._sequences.pop(sequence.request.request_id, None)

    def abort(self, request_ids: Iterable[str]) -> bool:
        """At the next `end_aborted`. Whether there are any."""
        found = [sequence for each in request_ids if (sequence := self._sequences.get(each)) is not None]
        self._aborted += found
        return bool(found)

    def end_aborted(self) -> None:
        aborted, self._aborted = self._aborted, []
        for sequence in aborted:
            if sequence.is_finished:
                continue
            if sequence in self._running:
                self._running.remove(sequence)
            elif sequence in self._queue:
                self._queue.remove(sequence)
            self._end(sequence, FinishReason.ABORT)

    def abort_all(self) -> None:
        self._aborted = list(self._sequences.values())
        self.end_aborted()

    def fail(self, error: Exception) -> None:
        """Nothing comes any more."""
        for sequence in self._sequences.values():
            sequence.chunks.put_nowait(error)

    def admit(self, version: Version, *, draining: bool) -> None:
        """Those that wait into free slots, first come first served. `draining`: only such as were begun."""
        passed_over: list[Sequence] = []
        while self._queue and len(self._running) < self._costs.slots:
            sequence = self._queue.popleft()
            floor = sequence.request.min_version
            if (draining and not sequence.in_flight) or not (floor is None or version.serves(floor)):
                passed_over.append(sequence)
                continue
            if not sequence.cached:
                self._to_prefill += sequence.tokens - 1
            sequence.in_flight = sequence.cached = True
            self._running.append(sequence)
        self._queue.extendleft(reversed(passed_over))

    def take_prefill(self) -> int:
        """Tokens of those that run that are to be computed before the next decode step, which is done by this."""
        tokens, self._to_prefill = self._to_prefill, 0
        return tokens

    def steps(self) -> int:
        """Decode steps until a sequence ends, or somebody who streams is to hear of one."""
        steps = min(sequence.left for sequence in self._running)
        untold = max((s.sampled - s.told for s in self._running if s.request.stream), default=None)
        return steps if untold is None else min(steps, self._costs.stream_steps - untold)

    def advance(self, version: Version, steps: int) -> None:
        """Each of the running has so many tokens more."""
        self.generated += steps * len(self._running)
        left = []
        for sequence in self._running:
            sequence.sampled += steps
            sequence.left -= steps
            sequence.spans.append((version, steps))
            if not sequence.left:
                self._end(sequence, FinishReason.STOP if sequence.stops else FinishReason.LENGTH)
                continue
            if sequence.request.stream and sequence.sampled - sequence.told >= self._costs.stream_steps:
                sequence.chunks.put_nowait(self._chunk(sequence, None))
            left.append(sequence)
        self._running = left

    def send_away(self) -> None:
        """All go on elsewhere, with the tokens that there are."""
        for sequence in (*self._running, *self._queue):
            if sequence.cached:
                self.sent_away += sequence.tokens
            self._end(sequence, FinishReason.INTERRUPTED)
        self._running, self._to_prefill = [], 0
        self._queue.clear()

    def suspend(self) -> int:
        """Those in flight wait, without their keys and values. How many tokens are prefilled again."""
        for sequence in self._running:  # those that wait have none
            sequence.cached = False
        self._queue.extendleft(reversed(self._running))
        self._running, self._to_prefill = [], 0
        return sum(sequence.tokens - 1 for sequence in self._begun())

    def interrupt(self) -> None:
        """Those in flight end, with the tokens that there are."""
        for sequence in self._begun():
            if sequence in self._queue:
                self._queue.remove(sequence)
            self._end(sequence, FinishReason.INTERRUPTED)
        self._running.clear()

    def _begun(self) -> list[Sequence]:
        return self._running + [sequence for sequence in self._queue if sequence.in_flight]

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.is_finished = True
        sequence.chunks.put_nowait(self._chunk(sequence, reason))
        self._ended(reason, sequence.request.request_id)

    def _chunk(self, sequence: Sequence, reason: FinishReason | None) -> TokenChunk:
        """What was not handed over yet."""
        begin, end = len(sequence.request.prompt) + sequence.told, sequence.tokens
        tokens = self._answers.tokens(sequence.request, begin, end, ended=reason is FinishReason.STOP)
        counts = [count for _, count in sequence.spans]
        versions = np.repeat(np.array([version.number for version, _ in sequence.spans], np.int32), counts)
        branches = np.repeat(np.array([version.branch for version, _ in sequence.spans], np.int32), counts)
        sequence.told = sequence.sampled
        sequence.spans.clear()
        return TokenChunk(tokens, logprobs_of(tokens, np.arange(begin, end)), versions, branches, reason)
