"""The conformance suite itself: the embedded engine passes it, and engines that are broken on purpose do not."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import conforming
import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.algorithms.kept_sets import KeptSets
from headrace.config import EngineConfig
from headrace.engines.conformance import (
    CHECKS,
    Check,
    NotConforming,
    Subject,
    a_death_is_told,
    a_full_engine_takes_new_weights,
    new_weights_are_used_and_told,
    nothing_is_found_of_old_weights,
    tokens_are_the_models,
    truncation_comes_with_its_kept_sets,
    who_is_sent_away_goes_on_elsewhere,
    who_sleeps_samples_nothing_and_goes_on,
    wrong_weights_are_refused,
)
from headrace.engines.conformance.subject import joined_chunks
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.protocol import (
    Engine,
    EngineError,
    FinishReason,
    GenerateRequest,
    SwapMode,
    SwapReport,
    Tag,
    TokenChunk,
)
from headrace.runtime.inline import InlineRuntime
from headrace.weights.plane import WeightReceiver
from headrace.weights.shm import ShmPublisher

CONTEXT = 320
"""Of the engine: tokens enough that requests still run when it is paused."""


class Broken:
    """An engine that does one thing wrong."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class WrongVersion(Broken):
    """Of the first token after a swap it says that it is of the version before."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        async for chunk in self._engine.generate(request):
            versions = chunk.versions.copy()
            if len(versions) and versions[0] > 0:
                versions[0] -= 1
            yield replace(chunk, versions=versions)


def only(answer: TokenChunk, keep: NDArray[np.bool_]) -> TokenChunk:
    return replace(
        answer,
        tokens=answer.tokens[keep],
        logprobs=answer.logprobs[keep],
        versions=answer.versions[keep],
        branches=answer.branches[keep],
    )


class LostToken(Broken):
    """The third token of an answer is missing."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        seen = 0
        async for chunk in self._engine.generate(request):
            keep = np.arange(seen, seen + len(chunk.tokens)) != 2
            seen += len(chunk.tokens)
            yield only(chunk, keep)


class LostInTheSwap(Broken):
    """Of what an update in mode `keep` goes on with it no longer knows the log-probs."""

    mode = SwapMode.RECOMPUTE

    async def update(self, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
        self.mode = mode
        return await self._engine.update(receiver, mode)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        began = self._engine.version.number
        async for chunk in self._engine.generate(request):
            lost = (chunk.versions > began) & (self.mode is SwapMode.KEEP)
            yield replace(chunk, logprobs=np.where(lost, np.float32(np.nan), chunk.logprobs))


class WaitsForAll(Broken):
    """In mode `keep` it looks at new weights only once nothing is in flight."""

    async def update(self, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
        return await self._engine.update(receiver, SwapMode.DRAIN if mode is SwapMode.KEEP else mode)


class EarlyVersion(Broken):
    """In mode `keep` it says of the last two tokens of old weights that they are of the new ones."""

    mode = SwapMode.RECOMPUTE

    async def update(self, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
        self.mode = mode
        return await self._engine.update(receiver, mode)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        answer = joined_chunks([chunk async for chunk in self._engine.generate(request)])
        versions = answer.versions
        if self.mode is SwapMode.KEEP:
            versions = np.concatenate([versions[2:], versions[-2:]])
        yield replace(answer, versions=versions)


class LostAtTheFlip(EarlyVersion):
    """In mode `keep` the first token of new weights is missing."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        answer = joined_chunks([chunk async for chunk in self._engine.generate(request)])
        flips = np.flatnonzero(np.diff(answer.versions)) + 1
        keep = np.ones(len(answer.tokens), dtype=bool)
        keep[flips] = self.mode is not SwapMode.KEEP
        yield only(answer, keep)


class LostEnd(Broken):
    """The last two tokens of an answer that went on under new weights are missing."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        answer = joined_chunks([chunk async for chunk in self._engine.generate(request)])
        count = len(answer.tokens) - 2 * (len(set(answer.versions.tolist())) > 1)
        yield only(answer, np.arange(len(answer.tokens)) < count)


class KeepsOne(Broken):
    """It says that each token was the only one there was."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        async for chunk in self._engine.generate(request):
            ones = np.ones(len(chunk.tokens), np.int32)
            kept = KeptSets.of(chunk.tokens, ones, conforming.VOCAB)
            yield replace(chunk, kept=kept, logprobs=np.zeros_like(chunk.logprobs))


class KeepsLess(Broken):
    """It leaves out an id of each set, and normalises over the rest."""

    def asked(self, request: GenerateRequest) -> GenerateRequest:
        return replace(request, sampling=replace(request.sampling, top_k=request.sampling.top_k - 1))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        async for chunk in self._engine.generate(self.asked(request)):
            yield chunk


class IgnoresTopP(KeepsLess):
    """Whatever is asked for."""

    def asked(self, request: GenerateRequest) -> GenerateRequest:
        return replace(request, sampling=replace(request.sampling, top_p=1.0))


class Hasty(Broken):
    """While weights are looked at, it hands out tokens of theirs."""

    unproven: int | None = None

    async def update(self, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
        version = receiver.latest()
        assert version is not None
        self.unproven = version.number
        try:
            await asyncio.sleep(0.05)
            return await self._engine.update(receiver, mode)
        finally:
            self.unproven = None

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        async for chunk in self._engine.generate(request):
            now = self.unproven
            yield chunk if now is None else replace(chunk, versions=np.full_like(chunk.versions, now))


class StaleCache(Broken):
    """What is in flight goes on with keys and values of the old weights, though they were to be computed again."""

    async def update(self, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
        return await self._engine.update(receiver, SwapMode.KEEP)


class Credulous(Broken):
    """It takes weights for what they are called."""

    async def update(self, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
        receiver.received = lambda: replace(type(receiver).received(receiver), check=None)  # type: ignore[method-assign]
        receiver.receive_as = lambda make, share=None: make(receiver.received())  # type: ignore[method-assign]
        return await self._engine.update(receiver, mode)


class Hushed(Broken):
    """What its death cut off ends as if it were whole."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        chunk = None
        try:
            async for chunk in self._engine.generate(request):
                yield chunk
        except EngineError:
            if chunk is not None:
                yield replace(
                    chunk,
                    tokens=chunk.tokens[:0],
                    logprobs=chunk.logprobs[:0],
                    versions=chunk.versions[:0],
                    branches=chunk.branches[:0],
                    finish_reason=FinishReason.LENGTH,
                )


class Insomniac(Broken):
    """It says that it sleeps, and serves on."""

    asleep: tuple[Tag, ...] = ()
    rests = property(lambda self: bool(self.asleep))

    async def sleep(self, tags: Sequence[Tag], *, sends_away: bool = False) -> None:
        self.asleep = (*tags,)

    async def wake(self, tags: Sequence[Tag]) -> None:
        self.asleep = ()


class Deaf(Broken):
    """It aborts what it is to send away."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        async for chunk in self._engine.generate(request):
            cut = chunk.finish_reason is FinishReason.INTERRUPTED
            yield replace(chunk, finish_reason=FinishReason.ABORT) if cut else chunk


class Hoarder(Broken):
    """It keeps the weights that it was to drop, and wakes with them."""

    async def sleep(self, tags: Sequence[Tag], *, sends_away: bool = False) -> None:
        self._kept = self._engine._core._runner._weights  # type: ignore[union-attr]
        await self._engine.sleep(tags)

    async def wake(self, tags: Sequence[Tag]) -> None:
        core: Any = self._engine._core
        core._runner._weights = core._runner._weights or self._kept
        core.asleep = tuple(tag for tag in core.asleep if tag is not Tag.WEIGHTS)
        await self._engine.wake(tags)


async def dies(subject: Subject) -> None:
    engine: Any = subject.engine
    await a_death_is_told(subject, lambda: engine.kill("of the test"))


def put_to(checks: tuple[Check, ...], folder: Path, made: Callable[[EmbeddedEngine], Engine]) -> None:
    async def run() -> None:
        runtime = InlineRuntime()
        config = EngineConfig(max_concurrent_sequences=16, max_context=CONTEXT)
        engine = EmbeddedEngine(copy.deepcopy(conforming.model("a")), config=config, runtime=runtime)
        try:
            await engine.start()
            publish = conforming.Publications(ShmPublisher(folder))
            subject = conforming.subject(made(engine), runtime.clock, publish, CONTEXT)
            for check in checks:
                await check(subject)
        finally:
            await engine.stop()
            await runtime.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "check",
    [*CHECKS, who_sleeps_samples_nothing_and_goes_on, who_is_sent_away_goes_on_elsewhere, dies],
    ids=lambda check: check.__name__,
)
def test_the_embedded_engine_conforms(tmp_path: Path, check: Check) -> None:
    put_to((check,), tmp_path, lambda engine: engine)


@pytest.mark.parametrize(
    ("broken", "check", "words"),
    [
        (WrongVersion, new_weights_are_used_and_told, "its versions go back|log-prob .*, the model's is"),
        (LostToken, tokens_are_the_models, "token 2 .*: log-prob"),
        (LostInTheSwap, new_weights_are_used_and_told, "log-prob nan of token .* is not finite"),
        (WaitsForAll, a_full_engine_takes_new_weights, "new weights were taken once all that was in flight had ended"),
        (
            EarlyVersion,
            new_weights_are_used_and_told,
            "first tokens of v1 after a swap have the log-prob that the model",
        ),
        (LostAtTheFlip, new_weights_are_used_and_told, "ended by LENGTH, and is not whole: 287 of 288"),
        (LostEnd, new_weights_are_used_and_told, "ended by LENGTH, and is not whole: 286 of 288"),
        (KeepsOne, truncation_comes_with_its_kept_sets, r"\d ids are missing beside the 1 that are kept"),
        (KeepsLess, truncation_comes_with_its_kept_sets, "4 ids are kept, at least 5 have to be"),
        (IgnoresTopP, truncation_comes_with_its_kept_sets, "ids are kept beyond its limits, and are no ties"),
        (Hasty, wrong_weights_are_refused, "tokens of v1, which was never there"),
        (StaleCache, new_weights_are_used_and_told, "log-prob .*, the model's is"),
        (Insomniac, who_sleeps_samples_nothing_and_goes_on, "it samples while it sleeps"),
        (Hoarder, who_sleeps_samples_nothing_and_goes_on, "it woke with weights that it had dropped"),
        (Deaf, who_is_sent_away_goes_on_elsewhere, "requests that it sent away ended by"),
        (Hushed, dies, "ended by LENGTH, and is not whole"),
        (Credulous, wrong_weights_are_refused, "weights that are not what the swap check says were taken"),
    ],
)
def test_a_broken_engine_does_not(tmp_path: Path, broken: Any, check: Check, words: str) -> None:
    with pytest.raises(NotConforming, match=words):
        put_to((check,), tmp_path, broken)


@pytest.mark.parametrize("reset_in", [(), (SwapMode.KEEP,), (SwapMode.KEEP, SwapMode.RECOMPUTE)])
def test_keys_and_values_of_old_weights_are_found(tmp_path: Path, reset_in: tuple[SwapMode, ...]) -> None:
    """As a prefix cache has them that nobody reset, or in some modes alone."""

    class Remembers(Broken):
        def __init__(self, engine: EmbeddedEngine) -> None:
            super().__init__(engine)
            self._told: dict[bytes, TokenChunk] = {}

        async def update(self, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
            if mode in reset_in:
                self._told.clear()
            return await self._engine.update(receiver, mode)

        async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
            chunks = [chunk async for chunk in self._engine.generate(request)]
            first = next(chunk for chunk in chunks if len(chunk.tokens))
            old = self._told.setdefault(request.prompt.tobytes(), first)
            for chunk in chunks:
                yield replace(chunk, logprobs=old.logprobs) if chunk is first else chunk

    with pytest.raises(NotConforming, match="log-prob"):
        put_to((nothing_is_found_of_old_weights,), tmp_path, Remembers)
