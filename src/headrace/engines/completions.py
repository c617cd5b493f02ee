"""One client of engines: asks, streams tokens in as they come, and goes on from what it has where an engine was
interrupted or died. Nobody else asks an engine for tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.kept_sets import KeptSets
from headrace.algorithms.kept_sets import joined as joined_sets
from headrace.engines.chunk_check import check_chunk
from headrace.engines.member import Member
from headrace.engines.place import Place
from headrace.engines.pool import EnginePool
from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import (
    EngineError,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    TokenChunk,
    UncertainVersions,
)
from headrace.runtime.off_loop import off_loop
from headrace.runtime.patience import StandStill
from headrace.runtime.protocol import Services, WaitTimeout
from headrace.runtime.supervision import REQUEST, Measure, after_failure
from headrace.weights.version import Version

_MOST_FAILURES = 3
"""Engines that may fail a request one after another, and live, before it is given up."""
_MOST_DEATHS = 8
"""Engines that may die under a request that gets no token: it may be what they die of."""
_NO_PROGRESS_PAUSE_S = 0.05
"""Before asking again an engine that was interrupted before it sampled anything."""


class GenerationAborted(Exception):
    """The run aborted the request; the episode ends, and is not trained."""


class NotServed(EngineError):
    """No engine that may serve the request came (back) in time. No fault of the request: it may be made again."""


class Stops(Protocol):
    """Looks for what ends a completion in the tokens as they come."""

    def push(self, tokens: NDArray[np.int32]) -> int | None:
        """How many tokens the completion has, once they hold what ends it."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What the policy sampled in one call; every array has the same length."""

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    branches: NDArray[np.int32]
    finish_reason: FinishReason
    """STOP, or LENGTH when a limit on tokens ended it."""
    kept: KeptSets | None = None
    """Where they were asked for and the sampling truncates."""
    temperature: float | None = None
    """That it was sampled at, where that need not be the run's."""
    experts: NDArray[np.unsignedinteger] | None = None
    """[tokens of prompt and completion, less the last one, layers, k]: where they are wanted, the experts that each of
    these tokens was routed to when an engine first computed it for this completion."""

    def first(self, tokens: int) -> Completion:
        """Its first so many tokens (all, if it has no more), ended there, as at a text that stops it."""
        if tokens >= len(self.tokens):
            return self
        return Completion(
            tokens=self.tokens[:tokens],
            logprobs=self.logprobs[:tokens],
            versions=self.versions[:tokens],
            branches=self.branches[:tokens],
            finish_reason=FinishReason.STOP,
            kept=None if self.kept is None else self.kept[:tokens],
            temperature=self.temperature,
            experts=None if self.experts is None else self.experts[: len(self.experts) - len(self.tokens) + tokens],
        )


class Cut:
    """By which a completion is ended from outside: by ABORT, with all tokens that the engine has sampled for it. One
    that no engine is at, or has heard of yet, goes on."""

    def __init__(self) -> None:
        self.is_wanted = False
        self.abort: Callable[[], None] = lambda: None
        """Tells the engine that is at it."""

    def end(self) -> None:
        self.is_wanted = True
        self.abort()


@dataclass(frozen=True, slots=True)
class Asked:
    """A completion that is wanted."""

    name: str
    """Begins the id of every request that is made for it; nobody else may use it at the time."""
    prompt: NDArray[np.int32]
    sampling: SamplingParams
    noise_key: int
    minimum: Version | None = None
    """The oldest version that may serve it: its number counts, within the run's line."""
    place: Place | None = None
    return_kept: bool = False
    return_experts: bool = False
    """Whether the completion is to have the experts that tokens were routed to: for router replay."""
    client: tuple[str, ...] = ()
    soon: bool = False
    """Whether somebody reads along: see `GenerateRequest.soon`."""
    still: Sequence[StandStill] = ()
    """Whose clocks stand still while no engine may serve it."""
    cut: Cut | None = None

    @property
    def exactly(self) -> Version | None:
        """See `Place.exactly`."""
        return None if self.place is None else self.place.exactly


async def stream(pool: EnginePool, asked: Asked) -> AsyncGenerator[TokenChunk, None]:
    """Chunks up to the one with the finish reason (ABORT too). Interruptions and deaths are hidden, and so is a failure
    of an engine that lives: what is left is asked for again, of the same engine or another, with the same noise.

    Raises RequestError for a request that no engine could serve, EngineError if engines failed it time and again
    without a token between (at once where one takes back what it said of versions: what came of it is with whoever
    reads), and NotServed.
    Leaving early aborts it.
    """
    state = _Progress(asked)
    none = np.empty(0, np.int32)
    while not state.is_complete():
        if asked.cut is not None and asked.cut.is_wanted:
            yield TokenChunk(none, np.empty(0, np.float32), none, none, FinishReason.ABORT)
            return
        member = await _engine_for(pool, asked, state)
        if member is None:
            continue
        engine, before = member.engine, state.sampled
        try:
            async with aclosing(_ask(pool, member, asked, state)) as chunks:
                async for chunk in chunks:
                    state.take(chunk)
                    if chunk.finish_reason is FinishReason.ABORT and pool.is_lost(member, engine):
                        # The engine was taken out, not the request.
                        chunk = replace(chunk, finish_reason=FinishReason.INTERRUPTED)
                    if chunk.finish_reason not in (None, FinishReason.INTERRUPTED):
                        yield chunk
                        return
                    if chunk.finish_reason is FinishReason.INTERRUPTED and state.is_complete():
                        yield replace(chunk, finish_reason=state.ended_by())
                        return
                    if len(chunk.tokens):
                        yield chunk if chunk.finish_reason is None else replace(chunk, finish_reason=None)
        except UncertainVersions:
            raise
        except EngineError as error:
            if pool.is_lost(member, engine):
                state.deaths = 1 if state.sampled > before else state.deaths + 1
                if state.deaths >= _MOST_DEATHS:
                    raise EngineError(
                        f"{state.deaths} engines died under request {asked.name} without a token: {error}"
                    ) from error
                if pool.failure is not None:
                    raise
                continue
            state.fail(member.index)
            if state.is_given_up(len(pool.members)):
                raise
            continue
        if state.sampled == before:
            await pool.clock.sleep(_NO_PROGRESS_PAUSE_S)
    yield TokenChunk(none, np.empty(0, np.float32), none, none, state.ended_by())


async def complete(
    pool: EnginePool,
    asked: Asked,
    stops: Stops | None = None,
    services: Services | None = None,
    came: Callable[[TokenChunk], None] | None = None,
) -> Completion:
    """The completion, whole; `stops` may end it early. `services`: for what is off the event loop. `came`: told each
    chunk that does not end it by `stops`, for who cuts it off and keeps what there is. Raises as `stream`, and
    GenerationAborted."""
    parts: list[TokenChunk] = []

    async def joined(finish: FinishReason) -> Completion:
        return await off_loop(services, sum(len(part.tokens) for part in parts), joined_parts, parts, finish)

    async with aclosing(stream(pool, asked)) as chunks:
        async for chunk in chunks:
            parts.append(chunk)
            stopped = None if stops is None else stops.push(chunk.tokens)
            if stopped is not None:
                return (await joined(FinishReason.STOP)).first(stopped)
            if came is not None:
                came(chunk)
            if chunk.finish_reason is FinishReason.ABORT:
                raise GenerationAborted(f"request {asked.name} was aborted")
            if chunk.finish_reason is not None:
                return await joined(chunk.finish_reason)
    return await joined(FinishReason.LENGTH)


def joined_parts(chunks: Sequence[TokenChunk], finish: FinishReason) -> Completion:
    if len(chunks) == 1:
        only = chunks[0]
        return Completion(
            only.tokens, only.logprobs, only.versions, only.branches, finish, only.kept, experts=only.experts
        )
    experts = [chunk.experts for chunk in chunks if chunk.experts is not None]
    return Completion(
        tokens=np.concatenate([np.empty(0, np.int32), *(chunk.tokens for chunk in chunks)], dtype=np.int32),
        logprobs=np.concatenate([np.empty(0, np.float32), *(chunk.logprobs for chunk in chunks)], dtype=np.float32),
        versions=np.concatenate([np.empty(0, np.int32), *(chunk.versions for chunk in chunks)], dtype=np.int32),
        branches=np.concatenate([np.empty(0, np.int32), *(chunk.branches for chunk in chunks)], dtype=np.int32),
        finish_reason=finish,
        kept=joined_sets([chunk.kept for chunk in chunks], [len(chunk.tokens) for chunk in chunks]),
        experts=np.concatenate(experts) if experts else None,
    )


@dataclass(slots=True)
class _Progress:
    """What a completion has so far."""

    asked: Asked
    parts: list[NDArray[np.int32]] = field(default_factory=list)
    sampled: int = 0
    routed: int = 0
    """Leading tokens of prompt and completion of which the experts are known."""
    requests: int = 0
    failed: list[int] = field(default_factory=list)
    """Engines that failed it in a row, and live, without a token between."""
    avoided: set[int] = field(default_factory=set)
    """Of those that failed it the ones that are not asked again, before a pause or at all."""
    deaths: int = 0
    """Engines that died in a row, without a token between."""

    @property
    def left(self) -> int:
        return self.asked.sampling.max_new_tokens - self.sampled

    def is_complete(self) -> bool:
        """Nothing is left to ask for: also where an engine died before it could say so."""
        return self.left <= 0 or self._stopped

    @property
    def _stopped(self) -> bool:
        return bool(self.parts) and int(self.parts[-1][-1]) in self.asked.sampling.stop_token_ids

    def ended_by(self) -> FinishReason:
        return FinishReason.STOP if self._stopped else FinishReason.LENGTH

    def fail(self, engine: int) -> None:
        """One that lives has failed it."""
        self.failed.append(engine)
        self.avoided.add(engine)
        if self.pause_s is None:
            self.avoided.update(self.failed)

    @property
    def pause_s(self) -> float | None:
        """Before those that are avoided are asked again; None: they are not, they failed it too often."""
        then = after_failure(REQUEST, max(1, len(self.failed)))
        return None if then.measure is Measure.STOP else then.pause_s

    def is_given_up(self, engines: int) -> bool:
        """`engines`: that there are."""
        return self.pause_s is None and len(set(self.failed)) >= min(_MOST_FAILURES, engines)

    def take(self, chunk: TokenChunk) -> None:
        """Raises EngineError for a chunk without the experts that were asked for."""
        if len(chunk.tokens):
            known = 0 if chunk.experts is None else len(chunk.experts)
            fed = len(self.asked.prompt) + self.sampled + len(chunk.tokens) - 1
            if self.asked.return_experts and self.routed + known != fed:
                raise EngineError(
                    f"request {self.asked.name}: a chunk has the experts of {known} tokens, and {fed - self.routed} "
                    "were fed"
                )
            self.routed += known
            self.parts.append(chunk.tokens)
            self.sampled += len(chunk.tokens)
            self.failed.clear()

    def next_request(self, version: Version | None) -> GenerateRequest:
        asked = self.asked
        self.requests += 1
        return GenerateRequest(
            request_id=f"{asked.name}.{self.requests - 1}",
            prompt=np.concatenate([asked.prompt, *self.parts], dtype=np.int32),
            sampling=replace(asked.sampling, max_new_tokens=self.left),
            noise_key=asked.noise_key,
            min_version=version,
            stream=True,
            soon=asked.soon,
            return_kept=asked.return_kept,
            experts_from=self.routed if asked.return_experts else None,
            client=asked.client,
        )


def _floor(pool: EnginePool, asked: Asked) -> int | None:
    """Number of the oldest version that may serve it now."""
    return None if asked.minimum is None else pool.line.floor(asked.minimum)


async def _engine_for(pool: EnginePool, asked: Asked, state: _Progress) -> Member | None:
    """None: after a pause, those that failed it may be asked again. Waits, while no engine may serve it, for one that
    comes back or takes a newer version: so long the clocks stand still. Raises EngineError, NotServed."""
    failed = state.avoided
    member = pool.route(_floor(pool, asked), asked.place, failed)
    if member is not None:
        return member
    if failed and state.pause_s is not None:
        await pool.clock.sleep(state.pause_s)
        failed.clear()
        return None
    wanted = "any version" if asked.minimum is None else f"{asked.minimum} or newer"
    wanted = wanted if asked.exactly is None else f"{asked.exactly} alone"
    have = ", ".join(
        f"{view.version or view.state}{' (failed)' if view.index in failed else ''}" for view in pool.views()
    )
    why = f"no engine is left for a request that needs {wanted}; engines have {have}"

    def is_hopeless() -> bool:
        """All that may come back have failed it."""
        only = () if asked.place is None else asked.place.only
        left = [view for view in pool.views() if view.index not in failed and (not only or view.index in only)]
        return pool.failure is not None or all(view.state is EngineState.GONE for view in left)

    if is_hopeless():
        raise EngineError(why)
    found: list[Member] = []

    def is_there() -> bool:
        member = pool.route(_floor(pool, asked), asked.place, failed)
        if member is not None:
            found.append(member)
        return member is not None or is_hopeless()

    with ExitStack() as standing:
        for clock in (pool.outage, *asked.still):
            standing.enter_context(clock.standing())
        while not is_there():
            try:
                await pool.changed.wait_until(is_there, pool.clock, pool.return_deadline_s, lambda: "an engine")
            except WaitTimeout as late:
                if failed:
                    raise EngineError(why) from late  # an engine could serve it, and failed it: it is not made again
                # Where none serves at all, it is for whoever watches over the engines to end the run.
                if any(view.serves for view in pool.views()):
                    raise NotServed(f"{why}, and none came within {pool.return_deadline_s:g} s") from late
    if not found:
        raise EngineError(why)
    return found[-1]


async def _ask(pool: EnginePool, member: Member, asked: Asked, state: _Progress) -> AsyncGenerator[TokenChunk, None]:
    """What one engine samples. Raises EngineError if it does not say why it ended."""
    engine, floor = member.engine, None
    if asked.minimum is not None:
        # The branch is that of the engine's own version, which the line holds: the floor is a number.
        floor = Version(min(asked.minimum.branch, engine.version.branch), pool.line.floor(asked.minimum))
    request = state.next_request(floor)
    finished = False
    chunks = engine.generate(request)
    if asked.cut is not None:
        asked.cut.abort = lambda: engine.abort((request.request_id,))
    with pool.asked(member, asked.place, state.left, asked.still) as came:
        try:
            async for chunk in chunks:
                check_chunk(chunk, request, pool.line, asked.minimum, asked.exactly)
                if len(chunk.tokens):
                    came(len(chunk.tokens))
                finished = chunk.finish_reason is not None
                yield chunk
                if finished:
                    return
            raise EngineError(f"request {request.request_id} ended without a finish reason")
        finally:
            if not finished:
                engine.abort((request.request_id,))
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()
