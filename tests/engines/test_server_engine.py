"""An inference server as an engine, on a scripted server: in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headrace.config.errors import ConfigError
from headrace.engines.completions import Asked, complete
from headrace.engines.conformance import Subject, an_aborted_request_ends, an_aborted_request_that_waits_ends
from headrace.engines.place import Place
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import (
    EngineError,
    FinishReason,
    GenerateRequest,
    RequestError,
    SamplingParams,
    SwapMode,
    TokenChunk,
    UncertainVersions,
    VersionHeld,
)
from headrace.engines.remote import RemoteEngine
from headrace.engines.remote_types import ENGINE_TYPES
from headrace.engines.servers.dialect import Expected, Piece, Span
from headrace.engines.servers.engine import Limits, ServerEngine
from headrace.engines.servers.http import ServerGone, ServerRefused
from headrace.engines.servers.window import ServerLoad
from headrace.roles.workers.engine_host import EngineHost
from headrace.runtime.patience import StandStill
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.wire.wire_format import copied
from headrace.runtime.workers import WorkerError
from headrace.weights.newest_offer import Offered
from headrace.weights.plane import WeightError, WeightOffer, WeightReceiver
from headrace.weights.shm import ShmPublisher
from headrace.weights.swap_check import SwapCheck
from headrace.weights.version import INITIAL, Version

LIMITS = Limits(slots=4, max_context=64, vocab_size=100, dtype="float32")
STEP_S = 0.1
TOKENS = np.zeros((1, 3), np.int32)


@dataclass
class Scripted:
    """A server: a token a step and request. What it says can be wrong."""

    runtime: VirtualRuntime
    lag_s: float = 0.0
    """By which tokens come later than they are sampled."""
    reach_s: float = 0.0
    """In which a request comes to it. It knows nothing of one that is aborted before."""
    scores: float = -1.0
    """Of the swap check's tokens."""
    loads: list[str] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    """Of loads, in turn."""
    says: Callable[[str], str] = lambda name: name
    """What spans call a version."""
    up: bool = True
    load_is: ServerLoad | None = None
    load_fault: Exception | None = None
    fault: Exception | None = None
    """Of answers."""
    abort_fault: Exception | None = None
    """Of answers to what is aborted."""
    logprob: float = -1.0
    """Of each token."""
    health_fault: Exception | None = None
    is_deaf: bool = False
    """It knows none of the requests that it is told to abort."""
    hangs: bool = False
    """Calls are taken, and never answered."""
    load_s: float = 0.0
    """In which it takes a version."""
    stands: bool = False
    """It decodes nothing, though its health is well."""
    pause_faults: list[Exception | None] = field(default_factory=list)
    """Of pauses, in turn: it goes on as before."""
    resume_fault: Exception | None = None
    """It goes on, and its answer is lost."""
    name: str = "a server"
    together: int | None = None
    retracts: bool = False
    count: int = 0
    counts: bool = True
    paused: SwapMode | None = None
    version: str = "default"
    asked: list[str] = field(default_factory=list)
    aborted: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)

    async def is_up(self) -> bool:
        if self.health_fault is not None:
            raise self.health_fault
        return self.up

    async def meet(self, expected: Expected) -> None:
        pass

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        clock, name = self.runtime.clock, request.request_id
        await clock.sleep(self.reach_s)
        self.asked.append(name)
        spans: list[Span] = []
        sampled = 0
        finish = None
        late: list[tuple[float, Piece]] = []
        while finish is None:
            await clock.sleep(STEP_S)
            if self.stands:
                continue
            if self.fault is not None:
                raise self.fault
            if self.abort_fault is not None and name in self.aborted:
                raise self.abort_fault
            cuts = self.paused in (SwapMode.RECOMPUTE, SwapMode.DRAIN) and not self.retracts
            if name in self.aborted or (cuts and sampled):
                finish = FinishReason.ABORT
            elif self.paused is None:
                if not spans or spans[-1].version != self.says(self.version):
                    spans.append(Span(self.says(self.version), sampled, sampled))
                spans[-1] = spans[-1]._replace(end=sampled + 1)
                sampled += 1
                self.count += 1
                if sampled == request.sampling.max_new_tokens:
                    finish = FinishReason.LENGTH
                late.append((clock.now() + self.lag_s, Piece(*_arrays(1, self.logprob))))
            while late and late[0][0] <= clock.now():
                yield late.pop(0)[1]
        for _, piece in late:
            yield piece
        yield Piece(*_arrays(0), finish=finish, spans=tuple(spans))

    async def abort(self, request_ids: Iterable[str]) -> None:
        if not self.is_deaf:
            self.aborted |= set(request_ids) & set(self.asked)
        if self.abort_fault is not None:
            await self.runtime.clock.sleep(2 * STEP_S)

    async def pause(self, mode: SwapMode) -> None:
        self.calls.append(f"pause {mode}")
        if self.pause_faults and (fault := self.pause_faults.pop(0)) is not None:
            raise fault
        self.paused = mode

    async def resume(self) -> None:
        self.calls.append("resume")
        self.paused = None
        if self.resume_fault is not None:
            raise self.resume_fault

    async def load(self, offer: WeightOffer, name: str) -> None:
        assert self.paused is not None
        self.calls.append(f"load {name}")
        if self.hangs:
            await self.runtime.clock.sleep(1e5)
        await self.runtime.clock.sleep(self.load_s)
        if self.faults:
            raise self.faults.pop(0)
        self.version = name

    async def score(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        assert self.paused is None
        self.count += len(tokens)
        await self.runtime.clock.sleep(2 * STEP_S)
        return np.full((len(tokens), tokens.shape[1] - 1), self.scores, np.float32)

    async def sampled(self) -> int | None:
        return self.count if self.counts else None

    async def fares(self) -> ServerLoad | None:
        if self.load_fault is not None:
            raise self.load_fault
        return self.load_is


def _arrays(count: int, logprob: float = -1.0) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    return np.full(count, 5, np.int32), np.full(count, logprob, np.float32)


class Offers(WeightReceiver):
    def __init__(self, *numbers: int) -> None:
        """One after another, each time that it is asked; the last one stays."""
        self._numbers = list(numbers)

    def latest(self) -> Version:
        return Version(0, self._numbers[0])

    def offer(self) -> WeightOffer:
        number = self._numbers.pop(0) if len(self._numbers) > 1 else self._numbers[0]
        check = SwapCheck(TOKENS, np.full((1, 2), -1.0, np.float32), 1.0, "float32")
        return WeightOffer(Version(0, number), "memory", "nowhere", None, check)

    def receive(self) -> Any:
        raise NotImplementedError


def request(name: str = "r", tokens: int = 10, prompt: tuple[int, ...] = (1, 2), **more: Any) -> GenerateRequest:
    return GenerateRequest(
        name, np.array(prompt, np.int32), SamplingParams(max_new_tokens=tokens), noise_key=0, stream=True, **more
    )


async def read(engine: ServerEngine, asked: GenerateRequest) -> list[TokenChunk]:
    async with aclosing(engine.generate(asked)) as chunks:
        return [chunk async for chunk in chunks]


def versions(chunks: list[TokenChunk]) -> list[int]:
    return [int(number) for chunk in chunks for number in chunk.versions]


def on(test: Callable[[ServerEngine, Scripted, VirtualRuntime], Awaitable[None]], **server: Any) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        scripted = Scripted(runtime, **server)
        engine = ServerEngine(scripted, LIMITS, runtime)
        await engine.start()
        try:
            await test(engine, scripted, runtime)
        finally:
            await engine.stop()

    run_virtually(main)


def test_what_a_swap_cuts_off_ends_as_interrupted_with_the_old_version() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        reading = asyncio.ensure_future(read(engine, request()))
        await runtime.clock.sleep(3.5 * STEP_S)
        report = await engine.update(Offers(1), SwapMode.RECOMPUTE)
        chunks = await reading
        assert chunks[-1].finish_reason is FinishReason.INTERRUPTED
        assert versions(chunks) == [0, 0, 0]
        assert report is not None
        assert (report.version, report.interrupted, engine.version) == (Version(0, 1), 1, Version(0, 1))
        assert server.calls == ["pause recompute", "load 0.1", "resume"]
        assert versions(await read(engine, request("s"))) == [1] * 10
        assert await engine.update(Offers(1), SwapMode.RECOMPUTE) is None

    on(test)


def test_what_is_kept_goes_on_and_late_tokens_are_of_the_version_that_sampled_them() -> None:
    """Tokens come 2.5 steps after they were sampled: the swap waits for those on their way."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        reading = asyncio.ensure_future(read(engine, request()))
        await runtime.clock.sleep(5.5 * STEP_S)
        await engine.update(Offers(1), SwapMode.KEEP)
        assert versions(await reading) == [0] * 5 + [1] * 5
        assert server.calls == ["pause keep", "load 0.1", "resume"]

    on(test, lag_s=2.5 * STEP_S)


def test_of_what_is_kept_what_has_no_token_yet_is_asked_again_under_the_new_weights() -> None:
    """The server took its prompt in under the old ones: by the salt of these, and perhaps with keys of theirs."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        goes_on = asyncio.ensure_future(read(engine, request("goes on")))
        await runtime.clock.sleep(3.0 * STEP_S)
        put_off = asyncio.ensure_future(read(engine, request("put off")))
        await runtime.clock.sleep(0.5 * STEP_S)
        await engine.update(Offers(1), SwapMode.KEEP)
        (chunk,) = await put_off
        assert (len(chunk.tokens), chunk.finish_reason) == (0, FinishReason.INTERRUPTED)
        again = await read(engine, request("put off again"))
        assert versions(again) == [1] * 10
        assert versions(await goes_on) == [0] * 3 + [1] * 7
        assert server.aborted == {"put off"}
        assert engine.stats().running == 0

    on(test)


def test_when_it_stops_what_waits_ends_as_what_runs_does() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        names = [f"r{number}" for number in range(LIMITS.slots + 1)]
        reading = [asyncio.ensure_future(read(engine, request(name))) for name in names]
        await runtime.clock.sleep(2.5 * STEP_S)
        assert engine.stats().waiting == 1
        await engine.stop()
        assert [(await each)[-1].finish_reason for each in reading] == [FinishReason.ABORT] * len(names)
        assert server.asked == names[:-1]

    on(test)


def test_one_that_does_not_count_recomputes_what_was_to_be_kept_and_that_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        reading = asyncio.ensure_future(read(engine, request()))
        await runtime.clock.sleep(3.5 * STEP_S)
        await engine.update(Offers(1), SwapMode.KEEP)
        assert (await reading)[-1].finish_reason is FinishReason.INTERRUPTED
        await engine.update(Offers(2), SwapMode.KEEP)
        assert [call for call in server.calls if call.startswith("pause")] == ["pause recompute"] * 2
        words = "does not say how many tokens it has sampled"
        assert sum(words in record.getMessage() for record in caplog.records) == 1

    on(test, counts=False)


def test_after_one_whose_count_was_another_what_is_in_flight_is_recomputed_once_and_then_kept_again() -> None:
    """Somebody else had one token of it: by when it is known that all have come is found out anew."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        reading = asyncio.ensure_future(read(engine, request(tokens=40)))
        await runtime.clock.sleep(3.5 * STEP_S)
        server.count += 1
        with pytest.raises(EngineError, match="it has sampled 4 tokens, and 3 came within 10 s"):
            await engine.update(Offers(1), SwapMode.KEEP)
        assert not engine.rests
        assert await engine.update(Offers(1), SwapMode.KEEP) is not None
        assert (await reading)[-1].finish_reason is FinishReason.INTERRUPTED
        kept = asyncio.ensure_future(read(engine, request("s")))
        await runtime.clock.sleep(3.5 * STEP_S)
        await engine.update(Offers(2), SwapMode.KEEP)
        assert versions(await kept) == [1] * 3 + [2] * 7
        assert [call for call in server.calls if "pause" in call] == ["pause keep", "pause recompute", "pause keep"]

    on(test)


def test_after_one_that_broke_off_as_the_swap_check_ran_what_is_in_flight_is_recomputed() -> None:
    """What was sampled of it then, nobody read."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        scored = server.score

        async def score(tokens: NDArray[np.int32]) -> NDArray[np.float32]:
            server.fault = EngineError("it broke off")
            server.count += 2
            await runtime.clock.sleep(2 * STEP_S)
            server.fault = None
            return await scored(tokens)

        reading = asyncio.ensure_future(read(engine, request(tokens=40)))
        await runtime.clock.sleep(3.5 * STEP_S)
        server.score = score  # type: ignore[method-assign]
        await engine.update(Offers(1), SwapMode.KEEP)
        with pytest.raises(EngineError, match="it broke off"):
            await reading
        server.score = scored  # type: ignore[method-assign]
        cut = asyncio.ensure_future(read(engine, request("s", tokens=40)))
        await runtime.clock.sleep(3.5 * STEP_S)
        assert await engine.update(Offers(2), SwapMode.KEEP) is not None
        assert (await cut)[-1].finish_reason is FinishReason.INTERRUPTED
        assert [call for call in server.calls if "pause" in call] == ["pause keep", "pause recompute"]

    on(test)


def test_where_the_server_retracts_what_is_in_flight_goes_on_as_it_is_recomputed() -> None:
    """Tokens come 2.5 steps after they were sampled."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        reading = asyncio.ensure_future(read(engine, request()))
        await runtime.clock.sleep(5.5 * STEP_S)
        report = await engine.update(Offers(1), SwapMode.RECOMPUTE)
        assert report is not None
        assert report.interrupted == 1
        assert versions(await reading) == [0] * 5 + [1] * 5
        assert server.calls == ["pause recompute", "load 0.1", "resume"]
        assert server.asked == ["r"]

    on(test, lag_s=2.5 * STEP_S, retracts=True)


def test_one_that_retracts_keeps_what_is_in_flight_after_an_answer_broke_off() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        server.fault = ServerGone("it broke off")
        with pytest.raises(EngineError, match="it broke off"):
            await read(engine, request("s"))
        server.fault = None
        reading = asyncio.ensure_future(read(engine, request()))
        await runtime.clock.sleep(5.5 * STEP_S)
        await engine.update(Offers(1), SwapMode.KEEP)
        assert versions(await reading) == [0] * 5 + [1] * 5
        assert server.calls == ["pause keep", "load 0.1", "resume"]

    on(test, retracts=True)


def test_of_refused_weights_nothing_goes_on_at_a_server_that_retracts() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        reading = asyncio.ensure_future(read(engine, request(tokens=40)))
        await runtime.clock.sleep(3.5 * STEP_S)
        with pytest.raises(WeightError, match="refused v1"):
            await engine.update(Offers(1), SwapMode.RECOMPUTE)
        chunks = await reading
        assert versions(chunks) == [0, 0, 0]
        assert chunks[-1].finish_reason is FinishReason.INTERRUPTED
        await runtime.clock.sleep(2 * STEP_S)
        assert (server.aborted, engine.stats().running) == ({"r"}, 0)

    on(test, scores=-3.0, retracts=True)


def test_drained_requests_end_before_and_new_ones_wait() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        reading = asyncio.ensure_future(read(engine, request()))
        await runtime.clock.sleep(3.5 * STEP_S)
        swapping = asyncio.ensure_future(engine.update(Offers(1), SwapMode.DRAIN))
        await runtime.clock.sleep(STEP_S)
        later = asyncio.ensure_future(read(engine, request("s", 2)))
        await runtime.clock.sleep(STEP_S)
        assert server.asked == ["r"]
        assert versions(await reading) == [0] * 10
        await swapping
        assert versions(await later) == [1, 1]

    on(test)


@pytest.mark.parametrize("mode", [SwapMode.RECOMPUTE, SwapMode.KEEP])
def test_nothing_of_weights_that_the_swap_check_refuses_is_handed_out(mode: SwapMode) -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        reading = asyncio.ensure_future(read(engine, request(tokens=40)))
        await runtime.clock.sleep(3.5 * STEP_S)
        with pytest.raises(WeightError, match=r"refused v1: it gives 2 tokens log-probs that are 2 from"):
            await engine.update(Offers(1), mode)
        chunks = await reading
        assert versions(chunks) == [0, 0, 0]
        assert chunks[-1].finish_reason is FinishReason.INTERRUPTED
        assert engine.version == INITIAL
        (chunk,) = await read(engine, request("s", 3))
        assert chunk.finish_reason is FinishReason.INTERRUPTED
        assert server.asked == ["r"], "what is loaded is of no version: nobody is served"
        server.scores = -1.0
        await engine.update(Offers(1), mode)
        assert versions(await read(engine, request("t", 3))) == [1, 1, 1]

    on(test, scores=-3.0)


def test_an_answer_that_breaks_off_as_unchecked_weights_sample_it_goes_on_from_before_them() -> None:
    """SGLang 0.5.23 may fail so where an abort comes as tokens are on their way."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        server.abort_fault = ServerGone("it broke off")
        reading = asyncio.ensure_future(read(engine, request(tokens=40)))
        await runtime.clock.sleep(3.5 * STEP_S)
        with pytest.raises(WeightError):
            await engine.update(Offers(1), SwapMode.RECOMPUTE)
        chunks = await reading
        assert versions(chunks) == [0, 0, 0]
        assert chunks[-1].finish_reason is FinishReason.INTERRUPTED
        assert engine.stats().running == 0
        server.abort_fault, server.scores = None, -1.0
        await engine.update(Offers(1), SwapMode.RECOMPUTE)
        assert versions(await read(engine, request("s", 3))) == [1, 1, 1]

    on(test, scores=-3.0, retracts=True)


@pytest.mark.parametrize("passes", [True, False])
def test_what_ends_while_the_swap_check_runs_is_handed_out_once_it_passed(passes: bool) -> None:
    """One token is left at the swap; the check takes two steps."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        reading = asyncio.ensure_future(read(engine, request(tokens=6)))
        await runtime.clock.sleep(5.5 * STEP_S)
        if passes:
            await engine.update(Offers(1), SwapMode.KEEP)
        else:
            with pytest.raises(WeightError):
                await engine.update(Offers(1), SwapMode.KEEP)
        chunks = await asyncio.wait_for(reading, 10.0)
        assert versions(chunks) == [0] * 5 + [1] * passes
        assert chunks[-1].finish_reason is (FinishReason.LENGTH if passes else FinishReason.INTERRUPTED)
        assert engine.stats().running == 0

    on(test, scores=-1.0 if passes else -3.0)


@pytest.mark.parametrize(
    ("mode", "retracts"), [(SwapMode.KEEP, False), (SwapMode.KEEP, True), (SwapMode.RECOMPUTE, True)]
)
def test_nothing_of_unchecked_weights_is_handed_out_where_the_answer_that_it_goes_on_is_lost(
    mode: SwapMode, retracts: bool
) -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        reading = asyncio.ensure_future(read(engine, request(tokens=40)))
        await runtime.clock.sleep(3.5 * STEP_S)
        server.resume_fault = ServerGone("the server to go on: it broke off")
        with pytest.raises(EngineError, match="it broke off"):
            await engine.update(Offers(1), mode)
        server.resume_fault = None
        assert versions(await reading) == [0, 0, 0]
        assert server.calls[-1] == "pause recompute"
        assert (engine.rests, engine.version) == (True, INITIAL)
        await engine.update(Offers(1), mode)
        assert versions(await read(engine, request("s", 3))) == [1, 1, 1]

    on(test, retracts=retracts)


@pytest.mark.parametrize("retracts", [False, True])
@pytest.mark.parametrize("pauses", [1, 2])
def test_nothing_is_loaded_into_a_server_that_was_refused_a_version_and_did_not_pause(
    pauses: int, retracts: bool
) -> None:
    """A newer version is there, which takes its place once the server rests, and only then."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        reading = asyncio.ensure_future(read(engine, request(tokens=40)))
        await runtime.clock.sleep(3.5 * STEP_S)
        server.resume_fault = ServerGone("the server to go on: it broke off")
        server.pause_faults = [None] + [ServerGone("the server to pause: nobody answers")] * pauses
        offers = Offers(1, 2)
        with pytest.raises(EngineError, match="it broke off" if pauses == 1 else "nobody answers"):
            await engine.update(offers, SwapMode.RECOMPUTE)
        assert versions(await reading) == [0, 0, 0]
        pause = "pause recompute"
        first = [pause, "load 0.1", "resume", pause, pause]
        assert server.calls == (first if pauses == 2 else [*first, "load 0.2", "resume", pause])
        server.resume_fault = None
        await engine.update(offers, SwapMode.RECOMPUTE)
        assert versions(await read(engine, request("s", 3))) == [2, 2, 2]

    on(test, retracts=retracts)


def test_weights_that_cannot_be_loaded_leave_it_paused_until_some_can() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        with pytest.raises(WeightError, match="damaged"):
            await engine.update(Offers(1), SwapMode.RECOMPUTE)
        assert server.paused is not None
        assert engine.rests
        await engine.update(Offers(2), SwapMode.RECOMPUTE)
        assert (engine.version, engine.rests, server.paused) == (Version(0, 2), False, None)

    on(test, faults=[WeightError("damaged")])


FAILING = pytest.mark.parametrize(
    ("mode", "retracts"), [(SwapMode.KEEP, False), (SwapMode.KEEP, True), (SwapMode.RECOMPUTE, True)]
)
"""Loads that fail in ways in which what is in flight rests meanwhile."""


@FAILING
@pytest.mark.parametrize("elsewhere", [False, True], ids=["in this process", "in another one"])
def test_what_a_server_that_cannot_load_a_version_has_or_is_to_have_goes_on_at_another(
    mode: SwapMode, retracts: bool, elsewhere: bool
) -> None:
    """Four are at work there, and one waits for room."""

    async def main(runtime: VirtualRuntime) -> None:
        failing = Scripted(runtime, retracts=retracts, load_s=300.0, faults=[WeightError("a broadcast stalled")])
        servers = [failing, Scripted(runtime)]
        engines = [
            ServerEngine(server, replace(LIMITS, slots=slots), runtime)
            for server, slots in zip(servers, (4, 8), strict=True)
        ]
        remotes = [RemoteEngine(Messages(Host(engine, runtime)), runtime, client="test") for engine in engines]
        for engine, remote in zip(engines, remotes, strict=True):
            await engine.start()
            if elsewhere:
                await remote.attach()
        pool = EnginePool.of(remotes if elsewhere else engines, runtime.clock)
        completing = asyncio.gather(*(complete(pool, wanted(name)) for name in "abcde"))
        await runtime.clock.sleep(3.5 * STEP_S)
        assert (engines[0].stats().running, engines[0].stats().waiting) == (4, 1)
        with pytest.raises(WeightError, match="stalled"):
            await pool.update(pool.members[0], Offers(1), mode)
        done = await runtime.clock.wait_for(completing, 15 * STEP_S, "completions")
        assert [one.versions.tolist() for one in done] == [[0] * 10] * 5
        assert (failing.count, servers[1].count) == (12, 38)
        await runtime.clock.sleep(STEP_S)
        assert failing.aborted == set(failing.asked) == {"a.0", "b.0", "c.0", "d.0"}
        assert (engines[0].stats().running, engines[0].stats().waiting) == (0, 0)
        for engine, remote in zip(engines, remotes, strict=True):
            await remote.detach()
            await engine.stop()

    run_virtually(main)


@FAILING
def test_at_a_single_server_that_cannot_load_a_version_what_it_had_waits_and_no_clock_runs(
    mode: SwapMode, retracts: bool
) -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        pool, still = EnginePool.of([engine], runtime.clock), StandStill(runtime.clock)
        pool.return_deadline_s = 600.0
        completing = asyncio.ensure_future(complete(pool, wanted("a", still=(still,))))
        await runtime.clock.sleep(3.5 * STEP_S)
        with pytest.raises(WeightError, match="damaged"):
            await pool.update(pool.members[0], Offers(1), mode)
        await runtime.clock.sleep(900.0)
        assert still.seconds() > 899
        assert not completing.done()
        await pool.update(pool.members[0], Offers(1), mode)
        assert (await completing).versions.tolist() == [0] * 3 + [1] * 7
        assert (server.asked, still.stands) == (["a.0", "a.1"], False)

    on(test, retracts=retracts, faults=[WeightError("damaged")])


def wanted(name: str, **more: Any) -> Asked:
    """At the first engine, while that serves."""
    sampling = SamplingParams(max_new_tokens=10)
    return Asked(name, np.array([1, 2], np.int32), sampling, 5, place=Place(INITIAL, home=0), **more)


def test_a_version_that_was_overtaken_gives_way_to_the_newest_at_once() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        server.faults = [WeightError("v1 is not whole any more"), WeightError("v2 is not whole any more")]
        report = await engine.update(Offers(1, 2, 3), SwapMode.RECOMPUTE)
        assert report is not None
        assert report.version == engine.version == Version(0, 3)
        assert [call for call in server.calls if "load" in call] == ["load 0.1", "load 0.2", "load 0.3"]
        server.faults = [WeightError("no"), WeightError("no"), WeightError("still not"), WeightError("no")]
        with pytest.raises(WeightError, match="still not"):
            await engine.update(Offers(4, 5, 6, 7), SwapMode.RECOMPUTE)
        assert engine.version == Version(0, 3)
        assert engine.rests

    on(test)


@pytest.mark.parametrize("waits_for", ["a pin", "what is in flight"])
def test_what_overtook_a_version_that_waited_is_taken_and_the_server_is_asked_for_no_other(
    waits_for: str, tmp_path: Path
) -> None:
    """By shared memory, where the third version is written over the first one."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        publisher = ShmPublisher(tmp_path)

        def publish(number: int) -> None:
            check = SwapCheck(TOKENS, np.full((1, 2), -1.0, np.float32), 1.0, "float32")
            publisher.send(publisher.snapshot(Version(0, number), [("w", torch.zeros(4))], check))

        publish(1)
        remote = RemoteEngine(Messages(Host(engine, runtime)), runtime, client="test")
        await remote.attach()
        pin = engine.pin() if waits_for == "a pin" else None
        reading = asyncio.ensure_future(read(engine, request()))
        await runtime.clock.sleep(1.5 * STEP_S)
        mode = SwapMode.KEEP if pin is not None else SwapMode.DRAIN
        swapping = asyncio.ensure_future(remote.update(publisher.receiver(), mode))
        await runtime.clock.sleep(2 * STEP_S)
        publish(2)
        publish(3)
        assert server.calls == []
        if pin is not None:
            pin.release()
        report = await swapping
        assert report is not None
        assert report.version == remote.version == Version(0, 3)
        assert [call for call in server.calls if "load" in call] == ["load 0.3"]
        assert versions(await reading) == ([0] * 3 + [3] * 7 if pin is not None else [0] * 10)
        await remote.detach()

    on(test)


def test_a_server_that_says_something_else_of_the_versions_fails_the_request() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        with pytest.raises(
            EngineError, match=r"its tokens are of \[\('0.7', 3\)\], and they were taken for \[\('0.0', 3\)"
        ):
            await read(engine, request(tokens=3))

    on(test, says=lambda name: "0.7")


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in this process", "in another one"])
def test_tokens_whose_versions_a_server_denies_are_part_of_no_completion_though_others_serve(elsewhere: bool) -> None:
    """Nobody can tell which versions they are of: no engine goes on from them."""

    async def main(runtime: VirtualRuntime) -> None:
        servers = [Scripted(runtime, says=lambda name: "0.7"), Scripted(runtime)]
        engines = [ServerEngine(server, LIMITS, runtime) for server in servers]
        hosts = [Host(engine, runtime) for engine in engines]
        remotes = [RemoteEngine(Messages(host), runtime, client="test") for host in hosts]
        for engine, remote in zip(engines, remotes, strict=True):
            await engine.start()
            if elsewhere:
                await remote.attach()
        pool = EnginePool.of(remotes if elsewhere else engines, runtime.clock)
        wanted = Asked("a", np.array([1, 2], np.int32), SamplingParams(max_new_tokens=3), 5)
        with pytest.raises(UncertainVersions, match=r"the server says that its tokens are of \[\('0.7', 3\)\]"):
            await complete(pool, wanted)
        assert (servers[0].asked, servers[1].asked) == (["a.0"], [])
        for engine, remote in zip(engines, remotes, strict=True):
            await remote.detach()
            await engine.stop()

    run_virtually(main)


class Host(EngineHost[ServerEngine]):
    def __init__(self, engine: ServerEngine, runtime: VirtualRuntime) -> None:
        super().__init__(runtime, returns=False)
        self._engine, self._device = engine, "cpu"

    def _receiver(self, offer: WeightOffer) -> WeightReceiver:
        return Offered(offer)


class Messages:
    """Asks a worker as if it were in another process."""

    here = None

    def __init__(self, host: Host) -> None:
        self._host = host

    async def call(self, method: str, *args: Any, what: str, seconds: float | None = None) -> Any:
        try:
            return await getattr(self._host, method)(*args)
        except Exception as error:
            raise WorkerError(0, type(error).__name__, str(error)) from error

    async def stream(
        self, method: str, *args: Any, what: str, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        async with aclosing(getattr(self._host, method)(*args)) as items:
            async for item in items:
                yield copied(item, ENGINE_TYPES, method)


@pytest.mark.parametrize("fails", [False, True])
def test_one_that_names_no_version_is_believed_until_weights_were_loaded(fails: bool) -> None:
    """A load that failed has loaded none: what ends there keeps what came before it."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        reading = asyncio.ensure_future(read(engine, request()))
        await runtime.clock.sleep(3.5 * STEP_S)
        if fails:
            server.faults = [WeightError("damaged")]
            with pytest.raises(WeightError, match="damaged"):
                await engine.update(Offers(1), SwapMode.KEEP)
        await engine.update(Offers(1), SwapMode.KEEP)
        assert versions(await reading) == [0] * 3 + [1] * (0 if fails else 7)
        server.version = "default"
        with pytest.raises(EngineError, match=r"of \[\('default', 3\)\], and they were taken for \[\('0.1', 3\)"):
            await read(engine, request("s", 3))

    on(test)


@pytest.mark.parametrize("logprob", [np.nan, -np.inf, np.inf])
def test_log_probs_that_are_not_finite_fail_their_request_alone(logprob: float) -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        server.logprob = logprob
        with pytest.raises(EngineError, match=f"request r: token 5 came with a log-prob of {logprob}"):
            await read(engine, request())
        server.logprob = -1.0
        assert len(versions(await read(engine, request("s")))) == 10
        assert engine.failure is None

    on(test)


def test_an_answer_that_cannot_be_read_fails_its_request_alone() -> None:
    """Whoever waits for it hears of it, and the next update recomputes: how much came is not known any more."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        server.fault = TypeError("no number")
        with pytest.raises(EngineError, match=r"request r: .* cannot be read: TypeError: no number"):
            await runtime.clock.wait_for(read(engine, request()), 100.0, "the request")
        server.fault = None
        assert (engine.failure, engine.stats().running) == (None, 0)
        reading = asyncio.ensure_future(read(engine, request("s")))
        await runtime.clock.sleep(3.5 * STEP_S)
        await engine.update(Offers(1), SwapMode.KEEP)
        assert (await reading)[-1].finish_reason is FinishReason.INTERRUPTED
        assert versions(await read(engine, request("t", 2))) == [1, 1]

    on(test)


@pytest.mark.parametrize(
    ("fault", "dies"), [(ConfigError("it takes no such token"), True), (ValueError("no answer"), False)]
)
def test_after_an_answer_broke_off_its_health_may_not_be_told(fault: Exception, dies: bool) -> None:
    """One that refuses who asks is gone; of another, health is looked at again."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        server.fault, server.health_fault = ServerGone("it broke off"), fault
        with pytest.raises(EngineError, match="it broke off"):
            await runtime.clock.wait_for(read(engine, request()), 2.5, "the request")
        assert (engine.failure is not None) is dies
        assert engine.stats().running == 0

    on(test)


def test_of_a_single_server_that_is_healthy_an_answer_that_breaks_off_costs_no_completion() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        pool = EnginePool.of([engine], runtime.clock)
        wanted = Asked("a", np.array([1, 2], np.int32), SamplingParams(max_new_tokens=10), 5)
        completing = asyncio.ensure_future(complete(pool, wanted))
        await runtime.clock.sleep(3.5 * STEP_S)
        server.fault = ServerGone("the connection was reset")
        await runtime.clock.sleep(STEP_S)
        server.fault = None
        assert (await completing).versions.tolist() == [0] * 10
        assert (server.asked, server.count) == (["a.0", "a.1"], 10)

    on(test)


def test_an_answer_that_breaks_off_is_the_engines_death_if_nobody_is_there() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        server.fault = ServerGone("it broke off")
        with pytest.raises(EngineError, match="it broke off"):
            await read(engine, request())
        assert engine.failure is None
        server.up = False
        with pytest.raises(EngineError, match="was lost: it broke off"):
            await read(engine, request("s"))
        assert engine.failure is not None
        with pytest.raises(EngineError, match="the engine died: it broke off"):
            await read(engine, request("t"))

    on(test)


def test_a_server_that_dies_over_an_update_and_answers_no_more_is_dead_once_its_health_says_so() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        waiting = asyncio.ensure_future(engine.update(Offers(1), SwapMode.RECOMPUTE))
        await runtime.clock.sleep(STEP_S)
        assert server.calls[-1] == "load 0.1"
        server.up = False
        reading = asyncio.ensure_future(read(engine, request()))
        began = runtime.clock.now()
        with pytest.raises(EngineError, match="the engine died: a server says that it is not healthy"):
            await waiting
        assert runtime.clock.now() - began < 4.0
        assert "resume" not in server.calls
        with pytest.raises(EngineError, match="the engine died"):
            await reading

    on(test, hangs=True)


def test_one_that_decodes_nothing_though_its_health_is_well_is_stuck_after_its_limit() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        clock, reading = runtime.clock, asyncio.ensure_future(read(engine, request(tokens=40)))
        await clock.sleep(3.5 * STEP_S)
        server.stands, server.load_is = True, ServerLoad(0.5, 3, 0)  # as it says each second
        began = clock.now()
        others = [asyncio.ensure_future(read(engine, request(name))) for name in "ab"]
        await clock.sleep(20.0)
        engine.abort(["a"])  # which such a server ends, though it decodes nothing
        server.aborted.add("a")
        assert engine.failure is None
        with pytest.raises(EngineError, match=r"request 'r' was lost: a server is stuck: of \d requests no token has"):
            await reading
        assert 30 <= clock.now() - began <= 33
        assert "31 s, of which 30 are allowed (runtime.stuck.decode_step_s)" in str(engine.failure)
        await asyncio.gather(*others, return_exceptions=True)

    on(test)


def test_one_that_gives_no_token_is_not_stuck_while_nothing_is_asked_or_it_is_paused_or_its_cache_fills() -> None:
    """Six minutes each, where 30 s are allowed."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        clock = runtime.clock
        await read(engine, request("first"))
        await clock.sleep(360.0)
        reading = asyncio.ensure_future(read(engine, request("paused", tokens=20)))
        await clock.sleep(3.5 * STEP_S)
        await engine.update(Offers(1), SwapMode.RECOMPUTE)
        assert versions(await reading) == [0] * 3 + [1] * 17
        server.stands, reading = True, asyncio.ensure_future(read(engine, request("long prompt")))
        for share in range(18):
            server.load_is = ServerLoad(share / 18, 1, 0)
            await clock.sleep(20.0)
        server.stands = False
        assert len(versions(await reading)) == 10
        assert engine.failure is None

    on(test, retracts=True, load_s=360.0)


@pytest.mark.parametrize(("key", "lives_s", "dies_s"), [(None, 290.0, 310.0), (20.0, 19.0, 22.0)])
def test_the_first_token_of_all_has_longer_unless_the_limit_is_given(
    key: float | None, lives_s: float, dies_s: float
) -> None:
    """Kernels may be compiled for it. Afterwards it is 30 s and five times the longest."""

    async def main(runtime: VirtualRuntime) -> None:
        for seconds, dies in ((lives_s, False), (dies_s, True)):
            server = Scripted(runtime, stands=True)
            engine = ServerEngine(server, replace(LIMITS, silence_s=key), runtime)
            await engine.start()
            reading = asyncio.ensure_future(read(engine, request()))
            await runtime.clock.sleep(seconds)
            server.stands = False
            assert (engine.failure is not None) == dies
            if not dies:
                await reading
                server.stands, reading = True, asyncio.ensure_future(read(engine, request("s")))
                await runtime.clock.sleep(40.0)
                assert (engine.failure is None) == (key is None)
            await engine.stop()
            await asyncio.gather(reading, return_exceptions=True)

    run_virtually(main)


@pytest.mark.parametrize(("part", "calls"), [("sampled", 2), ("score", 1)])
def test_an_update_that_is_cancelled_between_its_parts_leaves_nobody_to_wait_and_hands_out_no_token_of_it(
    part: str, calls: int
) -> None:
    """Just when the server has paused, and just when the check of what it loaded has passed: by the last of so many
    calls."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        reading = asyncio.ensure_future(read(engine, request(tokens=40)))
        await runtime.clock.sleep(3.5 * STEP_S)
        updating = asyncio.ensure_future(engine.update(Offers(1), SwapMode.KEEP))
        whole, left = getattr(server, part), [None] * calls

        async def last(*asked: Any) -> Any:
            found = await whole(*asked)
            left.pop()
            if not left:
                asyncio.get_running_loop().call_soon(updating.cancel)
            return found

        setattr(server, part, last)
        with pytest.raises(asyncio.CancelledError):
            await updating
        setattr(server, part, whole)
        assert [chunk.finish_reason for chunk in await read(engine, request("s", 3))] == [FinishReason.INTERRUPTED]
        assert versions(await reading) == [0, 0, 0]
        assert await engine.update(Offers(2), SwapMode.KEEP) is not None
        assert versions(await read(engine, request("t", 3))) == [2, 2, 2]

    on(test)


def test_one_that_dies_just_as_it_has_paused_is_asked_for_no_load() -> None:
    """Nor waited for: such a call may be held."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        async def sampled() -> int | None:
            asyncio.get_running_loop().call_soon(engine.kill, "its core is gone")
            return server.count

        server.sampled = sampled  # type: ignore[method-assign]
        began = runtime.clock.now()
        with pytest.raises(EngineError, match="the engine died: its core is gone"):
            await engine.update(Offers(1), SwapMode.RECOMPUTE)
        assert server.calls == ["pause recompute"]
        assert runtime.clock.now() - began < 1.0

    on(test, hangs=True)


def test_what_it_says_of_itself_may_be_anything_and_its_health_is_looked_at_all_the_same() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        async def fares() -> ServerLoad | None:
            raise ValueError("could not convert string to float: 'full'")

        server.fares = fares  # type: ignore[method-assign]
        await runtime.clock.sleep(5.0)
        server.up = False
        await runtime.clock.sleep(5.0)
        assert engine.failure is not None

    on(test)


def test_one_that_is_sick_for_a_moment_lives() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        for _ in range(3):
            server.up = False
            await runtime.clock.sleep(2.0)
            server.up = True
            await runtime.clock.sleep(1.0)
        assert engine.failure is None
        assert versions(await read(engine, request(tokens=2))) == [0, 0]

    on(test)


def test_what_a_full_server_has_no_room_for_waits_here() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        server.load_is = ServerLoad(0.97, 4, 0)
        readings = [asyncio.ensure_future(read(engine, request(f"r{number}", 30))) for number in range(10)]
        await runtime.clock.sleep(0.5)
        assert len(server.asked) == LIMITS.slots
        await runtime.clock.sleep(3.2)  # the first four have ended, and it was full with them
        assert (engine.stats().running, engine.stats().waiting) == (3, 3)
        server.load_is = ServerLoad(0.3, 3, 0)
        await runtime.clock.sleep(1.0)
        assert (engine.stats().running, engine.stats().waiting) == (4, 2)
        assert [len(versions(await reading)) for reading in readings] == [30] * 10

    on(test)


def test_one_that_does_not_say_how_full_it_is_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    def warnings() -> int:
        return sum("does not say how full its KV cache is" in record.getMessage() for record in caplog.records)

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        await runtime.clock.sleep(2.5)
        server.load_is = ServerLoad(0.3, 0, 0)  # it had only just begun
        await runtime.clock.sleep(2.0)
        server.load_is = None
        await runtime.clock.sleep(2.0)
        assert warnings() == 0
        await runtime.clock.sleep(10.0)
        assert warnings() == 1

    on(test)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (ServerRefused("its metrics", "GET /metrics", 404, "Not Found"), "its metrics: the server answered 404"),
        (TypeError("string indices must be integers"), "TypeError: string indices must be integers"),
    ],
)
def test_one_whose_load_cannot_be_read_is_told_of_once_with_why_and_is_no_sick_one(
    fault: Exception, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        server.load_fault = fault
        await runtime.clock.sleep(10.0)
        (warning,) = [record.getMessage() for record in caplog.records if "how full" in record.getMessage()]
        assert f"a server does not say how full its KV cache is ({told}" in warning
        for _ in range(3):
            server.up = False
            await runtime.clock.sleep(1.0)
            server.up = True
            await runtime.clock.sleep(1.0)
        assert engine.failure is None

    on(test)


def test_an_aborted_request_ends_and_the_server_is_told() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        reading = asyncio.ensure_future(read(engine, request(tokens=40)))
        async with aclosing(engine.generate(request("left", 40))) as chunks:
            await anext(chunks)
        await runtime.clock.sleep(2.5 * STEP_S)
        engine.abort(["r", "nobody"])
        chunk = (await reading)[-1]
        assert chunk.finish_reason is FinishReason.ABORT
        await runtime.clock.sleep(2 * STEP_S)
        assert server.aborted == {"r", "left"}
        assert engine.stats().running == 0

    on(test)


def test_an_abort_that_is_before_its_request_at_the_server_is_told_again() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        reading = asyncio.ensure_future(read(engine, request(tokens=40)))
        await runtime.clock.sleep(0.01)
        engine.abort(["r"])
        assert (await reading)[-1].finish_reason is FinishReason.ABORT
        assert server.asked == []
        await runtime.clock.sleep(5 * STEP_S)
        assert (server.asked, server.aborted, engine.stats().running) == (["r"], {"r"}, 0)

    on(test, reach_s=0.05)


def test_an_aborted_request_that_waits_for_room_ends_at_once_and_is_asked_of_nobody() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        running = [asyncio.ensure_future(read(engine, request(f"r{number}"))) for number in range(LIMITS.slots)]
        waiting = [asyncio.ensure_future(read(engine, request(name, 2))) for name in ("left", "stays")]
        await runtime.clock.sleep(2.5 * STEP_S)
        began = runtime.clock.now()
        engine.abort(["left", "nobody"])
        (chunk,) = await runtime.clock.wait_for(waiting[0], 3600.0, "the aborted request")
        assert (len(chunk.tokens), chunk.finish_reason) == (0, FinishReason.ABORT)
        assert runtime.clock.now() == began
        assert (engine.stats().running, engine.stats().waiting) == (LIMITS.slots, 1)
        assert [len(versions(await each)) for each in (*running, waiting[1])] == [10, 10, 10, 10, 2]
        assert (server.asked, server.aborted) == (["r0", "r1", "r2", "r3", "stays"], set())

    on(test)


def test_it_keeps_what_the_conformance_suite_asks_of_aborts() -> None:
    def logprobs(name: str, tokens: NDArray[np.int32], temperature: float) -> NDArray[np.float32]:
        return np.full((len(tokens), LIMITS.vocab_size), -1.0, np.float32)

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        offers = Offers(1)
        subject = Subject(engine, runtime.clock, lambda name, spoilt: offers, logprobs, 100, 64, (5,))
        await an_aborted_request_ends(subject)
        await an_aborted_request_that_waits_ends(subject)
        assert engine.version == Version(0, 1)

    on(test)


def test_after_aborts_it_is_still_known_how_much_came() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        async with aclosing(engine.generate(request("left", 40))) as chunks:
            await anext(chunks)
        reading = asyncio.ensure_future(read(engine, request()))
        await runtime.clock.sleep(4.5 * STEP_S)
        await engine.update(Offers(1), SwapMode.KEEP)
        assert "pause keep" in server.calls
        assert sorted(set(versions(await reading))) == [0, 1]

    on(test)


@pytest.mark.parametrize("retracts", [False, True])
def test_one_that_goes_on_though_the_server_was_told_to_end_it_is_left(retracts: bool) -> None:
    """0.2, 1, 5 and 5 s after it was told first, as it gives a token. How much came is not known any more, until the
    next update. Where the server retracts, it is read to its end: left, it would go on."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        reading = asyncio.ensure_future(read(engine, request(tokens=60)))
        await runtime.clock.sleep(2.5 * STEP_S)
        engine.abort(["r"])
        assert (await reading)[-1].finish_reason is FinishReason.ABORT
        server.stands = True
        await runtime.clock.sleep(9.0)
        server.stands = False
        await runtime.clock.sleep(2.0)
        assert engine.stats().running == 1
        await runtime.clock.sleep(0.2 + 2 * STEP_S)
        assert engine.stats().running == (1 if retracts else 0)
        came = server.count
        await runtime.clock.sleep(3 * STEP_S)
        assert server.count - came == (3 if retracts else 0)
        await runtime.clock.sleep(60 * STEP_S)
        for number in (1, 2):
            reading = asyncio.ensure_future(read(engine, request(f"kept {number}")))
            await runtime.clock.sleep(4.5 * STEP_S)
            await engine.update(Offers(number), SwapMode.KEEP)
            await reading
        first = "pause keep" if retracts else "pause recompute"
        assert [call for call in server.calls if call.startswith("pause")] == [first, "pause keep"]

    on(test, is_deaf=True, retracts=retracts)


def test_a_pinned_version_is_held() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        pin = engine.pin()
        swapping = asyncio.ensure_future(engine.update(Offers(1), SwapMode.RECOMPUTE))
        await runtime.clock.sleep(10 * STEP_S)
        assert server.calls == []
        pin.release()
        await swapping
        assert engine.version == Version(0, 1)

    on(test)


def test_no_version_is_held_for_whoever_has_left_meanwhile() -> None:
    """Nobody would let go of it, and no update could ever come."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        host = Host(engine, runtime)
        outputs = host.outputs("evaluator")
        await anext(outputs)
        await host.pin("evaluator", INITIAL)
        await outputs.aclose()
        with pytest.raises(EngineError, match="evaluator has no stream of outputs open"):
            await host.pin("evaluator", INITIAL)
        assert await engine.update(Offers(1), SwapMode.RECOMPUTE) is not None

    on(test)


def test_no_version_is_held_of_a_server_that_is_taking_another_or_rests() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        swapping = asyncio.ensure_future(engine.update(Offers(1), SwapMode.RECOMPUTE))
        await runtime.clock.sleep(STEP_S)
        with pytest.raises(EngineError, match="a server has no version to be held: it is to take a new one first"):
            engine.pin()
        await engine.settled(0.1)
        assert not swapping.done()
        await engine.settled(60.0)
        await swapping
        held = engine.pin()
        assert held.version == engine.version == Version(0, 1)
        held.release()
        server.faults = [WeightError("damaged")]
        with pytest.raises(WeightError, match="damaged"):
            await engine.update(Offers(2), SwapMode.RECOMPUTE)
        with pytest.raises(EngineError, match="no version to be held"):
            engine.pin()

    on(test, load_s=1.0)


def test_that_a_version_is_held_for_long_is_told_as_that_by_another_process_too() -> None:
    """It is no fault of the weights, and none of the engine: both go on."""

    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        remote = RemoteEngine(Messages(Host(engine, runtime)), runtime, client="test")
        await remote.attach()
        pin = engine.pin()
        words = "has waited 3600.0 s for 1 pins on version v0 to be released before it is replaced"
        for each in (engine, remote):
            with pytest.raises(VersionHeld) as held:
                await each.update(Offers(1), SwapMode.RECOMPUTE)
            assert str(held.value) == words
        assert (server.calls, remote.failure, engine.rests) == ([], None, False)
        pin.release()
        assert await remote.update(Offers(1), SwapMode.RECOMPUTE) is not None
        await remote.detach()

    on(test)


@pytest.mark.parametrize(("prompt", "words"), [((1, 100), "id 100 at position 1 is outside"), ((1,) * 64, "no room")])
def test_a_bad_request_does_not_reach_the_server(prompt: tuple[int, ...], words: str) -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        with pytest.raises(RequestError, match=words):
            await read(engine, request(prompt=prompt))
        assert server.asked == []

    on(test)


def test_one_that_holds_no_version_serves_nobody_before_its_first() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        server = Scripted(runtime)
        engine = ServerEngine(server, LIMITS, runtime, holds=False)
        await engine.start()
        (chunk,) = await read(engine, request(tokens=2))
        assert (chunk.finish_reason, server.asked) == (FinishReason.INTERRUPTED, [])
        await engine.update(Offers(0), SwapMode.RECOMPUTE)
        assert versions(await read(engine, request(tokens=2))) == [0, 0]
        await engine.stop()

    run_virtually(main)


def test_seconds_before_a_request_are_idle_and_those_until_its_end_busy() -> None:
    async def test(engine: ServerEngine, server: Scripted, runtime: VirtualRuntime) -> None:
        await runtime.clock.sleep(3.0)
        await read(engine, request(tokens=5))
        stats = engine.stats()
        assert (stats.idle_s, stats.busy_s) == (pytest.approx(3.0), pytest.approx(5 * STEP_S))

    on(test)
