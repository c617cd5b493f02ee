"""An engine under test, what is known of the models that it may be given, and how its tokens are judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.kept_sets import joined
from headrace.engines.conformance.truncation import kept_fault
from headrace.engines.protocol import (
    Engine,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    TokenChunk,
)
from headrace.runtime.protocol import Clock
from headrace.weights.plane import WeightReceiver
from headrace.weights.version import INITIAL, Version

WAIT_S = 300.0
LOOK_S = 0.01


class NotConforming(AssertionError):
    """The engine does not keep what an engine has to."""


@dataclass
class Subject:
    """An engine that has started with the model "a", and what is known of the models that it may be given."""

    engine: Engine
    clock: Clock
    publish: Callable[[str, bool], WeightReceiver]
    """Publishes the model "a" or "b" as the next version, INITIAL's successor first. With True a tensor of it is as in
    the other model, though the swap check is the model's own."""
    logprobs: Callable[[str, NDArray[np.int32], float], NDArray[np.float32]]
    """Of a model, ids [T] and a temperature: log-probs [T, V] of what may follow each."""
    vocab_size: int
    max_context: int
    stops: tuple[int, ...]
    """Ids of which one or another is sampled often: a sixteenth of the vocabulary, where all are alike."""
    largest_gap: float = 1e-4
    """Of a log-prob to the model's own."""
    held: dict[Version, str] = field(default_factory=lambda: {INITIAL: "a"})
    """Which model each version is."""
    _requests: int = 0

    def publication(self, model: str, *, spoilt: bool = False) -> WeightReceiver:
        receiver = self.publish(model, spoilt)
        version = receiver.latest()
        assert version is not None
        if not spoilt:
            self.held[version] = model
        return receiver

    def request(self, tokens: int = 16, seed: int = 0, length: int = 7, **sampling: object) -> GenerateRequest:
        self._requests += 1
        chosen = np.random.default_rng(1000 + seed).integers(0, self.vocab_size, length).astype(np.int32)
        params = SamplingParams(max_new_tokens=tokens)
        return GenerateRequest(
            request_id=f"conformance-{self._requests}",
            prompt=chosen,
            sampling=replace(params, **sampling),  # type: ignore[arg-type]
            noise_key=seed,
            stream=True,
        )

    async def whole(self, request: GenerateRequest) -> TokenChunk:
        """All of its chunks as one. A server may cut it off at a swap: it is asked for again with what it has, once
        the engine rests no more."""
        chunks: list[TokenChunk] = []
        asked = request
        while True:
            sampled = await self.chunks(asked)
            chunks += sampled
            if sampled[-1].finish_reason is not FinishReason.INTERRUPTED:
                return joined_chunks(chunks)
            have = sum(len(chunk.tokens) for chunk in chunks)
            if have == request.sampling.max_new_tokens:
                return replace(joined_chunks(chunks), finish_reason=FinishReason.LENGTH)
            end = self.clock.now() + WAIT_S
            while self.engine.rests:
                require(self.clock.now() < end, f"request {request.request_id}: the engine rests")
                await self.clock.sleep(LOOK_S)
            asked = replace(
                request,
                request_id=f"{request.request_id}.{len(chunks)}",
                prompt=np.concatenate([request.prompt, *(chunk.tokens for chunk in chunks)], dtype=np.int32),
                sampling=replace(request.sampling, max_new_tokens=request.sampling.max_new_tokens - have),
            )

    async def chunks(self, request: GenerateRequest) -> list[TokenChunk]:
        """As they came, to the last. Raises NotConforming unless that says why it is, and where a log-prob is not
        finite: also of tokens that no model judges, since keys and values of old weights are in them."""
        found: list[TokenChunk] = []

        async def read() -> None:
            async with aclosing(self.engine.generate(request)) as chunks:
                async for chunk in chunks:
                    found.append(chunk)
                    _require_finite(request, chunk)

        await self.clock.wait_for(read(), WAIT_S, f"request {request.request_id}")
        if not found or found[-1].finish_reason is None:
            raise NotConforming(f"request {request.request_id} ended without a finish reason")
        return found

    def judge(self, request: GenerateRequest, answer: TokenChunk) -> None:
        """Raises NotConforming unless each token has the log-prob that the model of its version gives it, and all are
        there of what a limit ended."""
        tokens, start = np.concatenate([request.prompt, answer.tokens], dtype=np.int32), len(request.prompt)
        lengths = {len(answer.tokens), len(answer.logprobs), len(answer.versions), len(answer.branches)}
        if len(lengths) != 1:
            raise NotConforming(f"request {request.request_id}: arrays of the lengths {sorted(lengths)}")
        temperature = request.sampling.temperature or 1.0
        versions = [Version(int(b), int(n)) for b, n in zip(answer.branches, answer.versions, strict=True)]
        if unknown := [version for version in versions if version not in self.held]:
            raise NotConforming(f"request {request.request_id}: tokens of {unknown[0]}, which was never there")
        if versions != sorted(versions):
            raise NotConforming(f"request {request.request_id}: its versions go back: {versions}")
        known = {
            model: self.logprobs(model, tokens, temperature) for model in {self.held[version] for version in versions}
        }
        for place, version in enumerate(versions):
            told = known[self.held[version]][start + place - 1]
            self._judge_token(request, answer, place, version, told)
        require_whole(request, answer)

    def _judge_token(
        self, request: GenerateRequest, answer: TokenChunk, place: int, version: Version, told: NDArray[np.float32]
    ) -> None:
        token, name = int(answer.tokens[place]), f"request {request.request_id}, token {place} ({version})"
        if not 0 <= token < self.vocab_size:
            raise NotConforming(f"{name}: id {token} is outside the vocabulary")
        right = float(told[token])
        if request.return_kept and request.sampling.truncates:
            if answer.kept is None:
                raise NotConforming(f"{name}: it came without its kept set")
            kept, _ = answer.kept[place : place + 1].ids()
            if token not in kept:
                raise NotConforming(f"{name}: it is not in its own kept set")
            if fault := kept_fault(told, kept, request.sampling, self.largest_gap):
                raise NotConforming(f"{name}: {fault} (top_k {request.sampling.top_k}, top_p {request.sampling.top_p})")
            right -= float(np.logaddexp.reduce(told[kept].astype(np.float64)))
        if request.sampling.temperature == 0 and right < float(told.max()) - self.largest_gap:
            raise NotConforming(
                f"{name}: greedy, and {token} is {float(told.max()) - right:.3g} less likely than the best"
            )
        gap = abs(right - float(answer.logprobs[place]))
        if not gap <= self.largest_gap:
            raise NotConforming(f"{name}: log-prob {answer.logprobs[place]:.6f}, the model's is {right:.6f}")


def _require_finite(request: GenerateRequest, chunk: TokenChunk) -> None:
    for place in np.flatnonzero(~np.isfinite(chunk.logprobs)):
        told = f"log-prob {chunk.logprobs[place]} of token {place} of a chunk is not finite"
        raise NotConforming(f"request {request.request_id}: {told}")


def require_whole(request: GenerateRequest, answer: TokenChunk) -> None:
    """Raises NotConforming where a limit has ended it before it was reached."""
    count, asked = len(answer.tokens), request.sampling.max_new_tokens
    require(
        answer.finish_reason is not FinishReason.LENGTH or count == asked,
        f"request {request.request_id} ended by LENGTH, and is not whole: {count} of {asked} tokens",
    )


def require(holds: bool, words: str) -> None:
    """Raises NotConforming."""
    if not holds:
        raise NotConforming(words)


async def until_sampled(subject: Subject) -> None:
    """Until tokens of the requests at hand have come."""
    before, end = subject.engine.stats().generated_tokens, subject.clock.now() + WAIT_S
    while subject.engine.stats().generated_tokens < before + 16:
        require(subject.clock.now() < end, "no token came")
        await subject.clock.sleep(LOOK_S / 10)


def joined_chunks(chunks: Sequence[TokenChunk]) -> TokenChunk:
    """One of all of them, with the last one's reason to end."""
    kept = [chunk.kept for chunk in chunks if chunk.kept is not None]
    return TokenChunk(
        np.concatenate([chunk.tokens for chunk in chunks]),
        np.concatenate([chunk.logprobs for chunk in chunks]),
        np.concatenate([chunk.versions for chunk in chunks]),
        np.concatenate([chunk.branches for chunk in chunks]),
        chunks[-1].finish_reason,
        joined([chunk.kept for chunk in chunks], [len(chunk.tokens) for chunk in chunks]) if kept else None,
    )
