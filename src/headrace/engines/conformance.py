"""What any engine has to keep, as checks that any engine can be put to: see docs/adding/engine.md.

    for check in CHECKS:
        await check(subject)
    await a_death_is_told(subject, kill)

A check raises NotConforming, which says what was wrong with which token. It asks the engine for everything that it
judges, and knows nothing of how it works; what is right is told by the subject's own model, `logprobs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.kept_sets import joined
from headrace.engines.protocol import (
    Engine,
    EngineError,
    FinishReason,
    GenerateRequest,
    RequestError,
    SamplingParams,
    SwapMode,
    Tag,
    TokenChunk,
)
from headrace.runtime.protocol import Clock
from headrace.weights.plane import WeightError, WeightReceiver
from headrace.weights.version import INITIAL, Version

_WAIT_S = 300.0
_LOOK_S = 0.01
_DEATH_S = 30.0
"""In which whoever waits for an engine that has died must have been told so."""
_TRIES = 10
"""Of a swap: a fast engine may have ended all requests before it."""


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
        """All of its chunks as one. A server may cut it off at a swap: it is asked for again with what it has."""
        chunks: list[TokenChunk] = []
        asked = request
        while True:
            sampled = await self._chunks(asked)
            chunks += sampled
            if sampled[-1].finish_reason is not FinishReason.INTERRUPTED:
                return _joined(chunks)
            have = sum(len(chunk.tokens) for chunk in chunks)
            if have == request.sampling.max_new_tokens:
                return replace(_joined(chunks), finish_reason=FinishReason.LENGTH)
            asked = replace(
                request,
                request_id=f"{request.request_id}.{len(chunks)}",
                prompt=np.concatenate([request.prompt, *(chunk.tokens for chunk in chunks)], dtype=np.int32),
                sampling=replace(request.sampling, max_new_tokens=request.sampling.max_new_tokens - have),
            )

    async def _chunks(self, request: GenerateRequest) -> list[TokenChunk]:
        found: list[TokenChunk] = []

        async def read() -> None:
            async with aclosing(self.engine.generate(request)) as chunks:
                async for chunk in chunks:
                    found.append(chunk)  # noqa: PERF401 (up to an error)

        await self.clock.wait_for(read(), _WAIT_S, f"request {request.request_id}")
        if not found or found[-1].finish_reason is None:
            raise NotConforming(f"request {request.request_id} ended without a finish reason")
        return found

    def judge(self, request: GenerateRequest, answer: TokenChunk) -> None:
        """Raises NotConforming unless each token has the log-prob that the model of its version gives it."""
        tokens, start = np.concatenate([request.prompt, answer.tokens], dtype=np.int32), len(request.prompt)
        lengths = {len(answer.tokens), len(answer.logprobs), len(answer.versions), len(answer.branches)}
        if len(lengths) != 1:
            raise NotConforming(f"request {request.request_id}: arrays of the lengths {sorted(lengths)}")
        if not len(answer.tokens):
            return
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
            if sampling_k := request.sampling.top_k:
                last = float(np.partition(told, -sampling_k)[-sampling_k])
                if float(told[kept].min()) < last - self.largest_gap:
                    raise NotConforming(f"{name}: {len(kept)} ids are kept under top_k {sampling_k}, beyond ties")
            right -= float(np.logaddexp.reduce(told[kept].astype(np.float64)))
        if request.sampling.temperature == 0 and right < float(told.max()) - self.largest_gap:
            raise NotConforming(
                f"{name}: greedy, and {token} is {float(told.max()) - right:.3g} less likely than the best"
            )
        gap = abs(right - float(answer.logprobs[place]))
        if not gap <= self.largest_gap:
            raise NotConforming(f"{name}: log-prob {answer.logprobs[place]:.6f}, the model's is {right:.6f}")


Check = Callable[[Subject], Awaitable[None]]


async def tokens_are_the_models(subject: Subject) -> None:
    """Ids in, ids out, with the log-probs of the distribution that was sampled from."""
    requests = [
        subject.request(seed=seed, temperature=temperature, length=3 + 4 * seed)
        for seed, temperature in enumerate((1.0, 0.7, 1.3, 0.0))
    ]
    for request, answer in zip(requests, await _together(subject, requests), strict=True):
        subject.judge(request, answer)
        _require(len(answer.tokens) == 16, f"{len(answer.tokens)} tokens, 16 were asked for")
        _require(answer.finish_reason is FinishReason.LENGTH, f"it ended by {answer.finish_reason}, not LENGTH")


async def a_stop_token_ends_and_is_kept(subject: Subject) -> None:
    requests = [subject.request(200, seed=seed, stop_token_ids=subject.stops) for seed in range(8)]
    stopped = 0
    for request, answer in zip(requests, await _together(subject, requests), strict=True):
        subject.judge(request, answer)
        places = np.flatnonzero(np.isin(answer.tokens, subject.stops))
        if answer.finish_reason is FinishReason.STOP:
            stopped += 1
            _require(places.tolist() == [len(answer.tokens) - 1], "the stop token is the last one, and the only one")
        else:
            _require(not len(places), "a stop token in the midst of what a limit ended")
    _require(stopped > 0, f"none of 8 requests stopped at one of {len(subject.stops)} ids: choose likelier ones")


async def truncation_comes_with_its_kept_sets(subject: Subject) -> None:
    for sampling in ({"top_k": 5}, {"top_k": 20, "top_p": 0.6}):
        requests = [replace(subject.request(seed=seed, **sampling), return_kept=True) for seed in range(4)]
        for request, answer in zip(requests, await _together(subject, requests), strict=True):
            subject.judge(request, answer)


async def new_weights_are_used_and_told(subject: Subject) -> None:
    """In each mode, with requests in flight: each token is of the version that it is said to be of. What `keep` goes on
    with has keys and values of the old weights, so it is judged up to the swap."""
    for mode in (SwapMode.RECOMPUTE, SwapMode.DRAIN, SwapMode.KEEP):
        for _ in range(_TRIES):
            crossed = await _swapped(subject, mode)
            if crossed or mode is SwapMode.DRAIN:
                break
        _require(crossed == 0 or mode is not SwapMode.DRAIN, "a drained request has tokens of two versions")
        _require(
            crossed > 0 or mode is SwapMode.DRAIN, f"in mode {mode} no request went on under new weights: none was left"
        )
        fresh = subject.request(seed=77)
        answer = await subject.whole(fresh)
        subject.judge(fresh, answer)
        _require(set(answer.versions.tolist()) == {subject.engine.version.number}, "old weights after the swap")


async def _swapped(subject: Subject, mode: SwapMode) -> int:
    """How many of 8 requests went on under new weights."""
    engine = subject.engine
    receiver = subject.publication("b" if subject.held[engine.version] == "a" else "a")
    requests = [subject.request(subject.max_context - 32, seed=seed) for seed in range(8)]
    running = [asyncio.ensure_future(subject.whole(request)) for request in requests]
    await _until_sampled(subject)
    report = await engine.update(receiver, mode)
    _require(report is not None and report.version == receiver.latest(), f"the swap reported {report}")
    _require(engine.version == receiver.latest(), f"the engine says that it has {engine.version}")
    crossed = 0
    for request, answer in zip(requests, await asyncio.gather(*running), strict=True):
        new = np.flatnonzero(answer.versions == engine.version.number)
        crossed += 0 < len(new) < len(answer.tokens)
        subject.judge(request, _first(answer, int(new[0])) if mode is SwapMode.KEEP and len(new) else answer)
    return crossed


async def nothing_is_found_of_old_weights(subject: Subject) -> None:
    """A prompt that was computed before a swap is computed again."""
    before = subject.request(4, seed=5, length=40)
    subject.judge(before, await subject.whole(before))
    other = "b" if subject.held[subject.engine.version] == "a" else "a"
    await subject.engine.update(subject.publication(other), SwapMode.KEEP)
    after = subject.request(4, seed=5, length=40)
    subject.judge(after, await subject.whole(after))


async def wrong_weights_are_refused(subject: Subject) -> None:
    """A tensor that is the other model's: the update fails, nothing of it comes out, and the next one is taken."""
    version = subject.engine.version
    other = "b" if subject.held[version] == "a" else "a"
    try:
        await subject.engine.update(subject.publication(other, spoilt=True), SwapMode.RECOMPUTE)
    except (WeightError, EngineError):
        pass
    else:
        raise NotConforming("weights that are not what the swap check says were taken")
    _require(subject.engine.version == version, f"it says that it has {subject.engine.version}, which was refused")
    await subject.engine.update(subject.publication(other), SwapMode.RECOMPUTE)
    request = subject.request(seed=3)
    subject.judge(request, await subject.whole(request))


async def an_aborted_request_ends(subject: Subject) -> None:
    """With what was sampled; one whose reader leaves, too. Then nothing of them is left running."""
    aborted, left = subject.request(400, seed=1), subject.request(400, seed=2)
    running = asyncio.ensure_future(subject.whole(aborted))
    async with aclosing(subject.engine.generate(left)) as chunks:
        async for chunk in chunks:
            if len(chunk.tokens):
                break
    subject.engine.abort([aborted.request_id, "nobody's"])
    answer = await running
    _require(answer.finish_reason is FinishReason.ABORT, f"it ended by {answer.finish_reason}, not ABORT")
    subject.judge(aborted, answer)
    end = subject.clock.now() + _WAIT_S
    while subject.engine.stats().running:
        _require(subject.clock.now() < end, f"{subject.engine.stats().running} requests run on")
        await subject.clock.sleep(_LOOK_S)


async def a_bad_request_fails_alone(subject: Subject) -> None:
    good = asyncio.ensure_future(subject.whole(request := subject.request(60, seed=4)))
    ids: Mapping[str, Sequence[int]] = {
        "an id outside the vocabulary": [1, subject.vocab_size],
        "a prompt that fills the context": [1] * subject.max_context,
        "no prompt": [],
    }
    for what, prompt in ids.items():
        bad = replace(subject.request(), prompt=np.array(prompt, np.int32))
        try:
            await subject.whole(bad)
        except RequestError:
            continue
        raise NotConforming(f"{what} was taken")
    subject.judge(request, await good)


async def no_token_is_older_than_was_asked_for(subject: Subject) -> None:
    """A request that needs a version which comes only later waits for it."""
    other = "b" if subject.held[subject.engine.version] == "a" else "a"
    receiver = subject.publication(other)
    request = replace(subject.request(seed=6), min_version=receiver.latest())
    waiting = asyncio.ensure_future(subject.whole(request))
    await subject.clock.sleep(0.2)
    _require(not waiting.done(), "it did not wait for its version")
    await subject.engine.update(receiver, SwapMode.RECOMPUTE)
    answer = await waiting
    subject.judge(request, answer)
    _require(set(answer.versions.tolist()) == {subject.engine.version.number}, "tokens of an older version")


async def who_sleeps_samples_nothing_and_goes_on(subject: Subject) -> None:
    """For engines that sleep, so not among CHECKS. With requests in flight, and one that comes meanwhile: none gets a
    token, all go on from what they have. Dropped weights come back by `update` alone, be it with the same version."""
    for tags in ((Tag.KV,), (Tag.WEIGHTS,), (Tag.WEIGHTS, Tag.KV)):
        await _slept(subject, tags)


async def _slept(subject: Subject, tags: Sequence[Tag]) -> None:
    engine = subject.engine
    requests = [subject.request(subject.max_context - 32, seed=seed) for seed in range(8)]
    running = [asyncio.ensure_future(subject.whole(request)) for request in requests]
    await _until_sampled(subject)
    await engine.sleep(tags)
    _require(engine.rests and set(engine.asleep) == set(tags), f"it sleeps, and says {engine.asleep} of {tags}")
    requests.append(subject.request(20, seed=9))
    running.append(asyncio.ensure_future(subject.whole(requests[-1])))
    before = engine.stats().generated_tokens
    await subject.clock.sleep(0.2)
    _require(engine.stats().generated_tokens == before, "it samples while it sleeps")
    _require(not running[-1].done(), "a request ended while it slept")
    if Tag.WEIGHTS in tags:
        try:
            await engine.wake(tags)
        except EngineError:
            pass
        else:
            raise NotConforming("it woke with weights that it had dropped")
        receiver = subject.publication("b" if subject.held[engine.version] == "a" else "a")
        report = await engine.update(receiver, SwapMode.RECOMPUTE)
        _require(report is not None and engine.version == receiver.latest(), f"it woke with {engine.version}")
    await engine.wake(tags)
    _require(not engine.rests and not engine.asleep, f"it is awake, and says {engine.asleep}")
    for request, answer in zip(requests, await asyncio.gather(*running), strict=True):
        subject.judge(request, answer)
    if Tag.WEIGHTS in tags:
        await engine.sleep(tags)
        await engine.update(receiver, SwapMode.RECOMPUTE)  # what it had
        await engine.wake(engine.asleep)
        subject.judge(request := subject.request(seed=78), await subject.whole(request))


async def who_is_sent_away_goes_on_elsewhere(subject: Subject) -> None:
    """For engines that sleep, so not among CHECKS. With `sends_away` requests in flight end with INTERRUPTED and what
    was sampled, and so do those that come while it sleeps; here they go on on the same engine, once it is awake."""
    engine = subject.engine
    requests = [subject.request(subject.max_context - 32, seed=seed) for seed in range(8)]
    running = [asyncio.ensure_future(subject._chunks(request)) for request in requests]
    await _until_sampled(subject)
    await engine.sleep(tuple(Tag), sends_away=True)
    begun = [_joined(chunks) for chunks in await asyncio.gather(*running)]
    late = _joined(await subject._chunks(subject.request(20, seed=9)))
    ends = {part.finish_reason for part in (*begun, late)}
    _require(ends == {FinishReason.INTERRUPTED}, f"requests that it sent away ended by {ends}")
    _require(not len(late.tokens), "it sampled while it slept")
    _require(any(len(part.tokens) for part in begun), "what was sampled is lost")
    _require(engine.stats().sent_away_tokens > 0, "it does not say what others compute again")
    await engine.update(subject.publication("b"), SwapMode.RECOMPUTE)
    await engine.wake(engine.asleep)
    for request, part in zip(requests, begun, strict=True):
        rest = replace(
            request,
            request_id=f"{request.request_id}.rest",
            prompt=np.concatenate([request.prompt, part.tokens], dtype=np.int32),
            sampling=replace(request.sampling, max_new_tokens=16),
        )
        subject.judge(request, _joined([part, await subject.whole(rest)]))


async def a_death_is_told(subject: Subject, kill: Callable[[], object]) -> None:
    """`kill`: ends what computes, as a fault of it would, so this comes last. Each request in flight is told so, and
    has what was sampled before; the engine says that it has failed, and takes nothing more."""
    engine, requests = subject.engine, [subject.request(subject.max_context - 32, seed=seed) for seed in range(8)]
    came: list[list[TokenChunk]] = [[] for _ in requests]

    async def read(number: int) -> None:
        async with aclosing(engine.generate(requests[number])) as chunks:
            async for chunk in chunks:
                came[number].append(chunk)

    reading = [asyncio.ensure_future(read(number)) for number in range(len(requests))]
    await _until_sampled(subject)
    kill()
    _, waiting = await asyncio.wait(reading, timeout=_DEATH_S)
    _require(not waiting, f"{len(waiting)} of 8 requests wait on, {_DEATH_S:g} s after its death")
    told = await asyncio.gather(*reading, return_exceptions=True)
    lost = [isinstance(each, EngineError) and not isinstance(each, RequestError) for each in told]
    for request, chunks, is_lost, error in zip(requests, came, lost, told, strict=True):
        ended = bool(chunks) and chunks[-1].finish_reason is FinishReason.LENGTH and error is None
        _require(is_lost or ended, f"request {request.request_id} was not told of it: {error!r}")
        if chunks:
            answer = _joined(chunks)
            subject.judge(request, answer)
            whole = len(answer.tokens) == request.sampling.max_new_tokens
            _require(whole or not ended, f"request {request.request_id} ended by LENGTH, and is not whole")
    _require(any(lost), "none of 8 requests was in flight")
    _require(engine.failure is not None, "it does not say that it has failed")
    try:
        await subject.whole(subject.request())
    except EngineError:
        return
    raise NotConforming("it takes requests, though it is dead")


CHECKS: tuple[Check, ...] = (
    tokens_are_the_models,
    a_stop_token_ends_and_is_kept,
    truncation_comes_with_its_kept_sets,
    new_weights_are_used_and_told,
    nothing_is_found_of_old_weights,
    wrong_weights_are_refused,
    an_aborted_request_ends,
    a_bad_request_fails_alone,
    no_token_is_older_than_was_asked_for,
)


async def _together(subject: Subject, requests: Sequence[GenerateRequest]) -> list[TokenChunk]:
    return list(await asyncio.gather(*(subject.whole(request) for request in requests)))


async def _until_sampled(subject: Subject) -> None:
    """Until tokens of the requests at hand have come."""
    before, end = subject.engine.stats().generated_tokens, subject.clock.now() + _WAIT_S
    while subject.engine.stats().generated_tokens < before + 16:
        _require(subject.clock.now() < end, "no token came")
        await subject.clock.sleep(_LOOK_S / 10)


def _require(holds: bool, words: str) -> None:
    if not holds:
        raise NotConforming(words)


def _first(answer: TokenChunk, count: int) -> TokenChunk:
    return replace(
        answer,
        tokens=answer.tokens[:count],
        logprobs=answer.logprobs[:count],
        versions=answer.versions[:count],
        branches=answer.branches[:count],
    )


def _joined(chunks: Sequence[TokenChunk]) -> TokenChunk:
    kept = [chunk.kept for chunk in chunks if chunk.kept is not None]
    return TokenChunk(
        np.concatenate([chunk.tokens for chunk in chunks]),
        np.concatenate([chunk.logprobs for chunk in chunks]),
        np.concatenate([chunk.versions for chunk in chunks]),
        np.concatenate([chunk.branches for chunk in chunks]),
        chunks[-1].finish_reason,
        joined([chunk.kept for chunk in chunks], [len(chunk.tokens) for chunk in chunks]) if kept else None,
    )
