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

from headrace.config import EngineConfig
from headrace.engines.conformance import (
    CHECKS,
    Check,
    NotConforming,
    Subject,
    a_death_is_told,
    new_weights_are_used_and_told,
    nothing_is_found_of_old_weights,
    tokens_are_the_models,
    who_is_sent_away_goes_on_elsewhere,
    who_sleeps_samples_nothing_and_goes_on,
    wrong_weights_are_refused,
)
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


class LostToken(Broken):
    """The third token of an answer is missing."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        seen = 0
        async for chunk in self._engine.generate(request):
            keep = np.arange(seen, seen + len(chunk.tokens)) != 2
            seen += len(chunk.tokens)
            yield replace(
                chunk,
                tokens=chunk.tokens[keep],
                logprobs=chunk.logprobs[keep],
                versions=chunk.versions[keep],
                branches=chunk.branches[keep],
            )


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


def test_keys_and_values_of_old_weights_are_found(tmp_path: Path) -> None:
    """As a prefix cache has them that nobody reset."""

    class Remembers(Broken):
        def __init__(self, engine: EmbeddedEngine) -> None:
            super().__init__(engine)
            self._told: dict[bytes, TokenChunk] = {}

        async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
            chunks = [chunk async for chunk in self._engine.generate(request)]
            first = next(chunk for chunk in chunks if len(chunk.tokens))
            old = self._told.setdefault(request.prompt.tobytes(), first)
            for chunk in chunks:
                yield replace(chunk, logprobs=old.logprobs) if chunk is first else chunk

    with pytest.raises(NotConforming, match="log-prob"):
        put_to((nothing_is_found_of_old_weights,), tmp_path, Remembers)
