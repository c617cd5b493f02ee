"""What is asked of any engine that has started: each check asks the engine alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

import numpy as np

from headrace.engines.conformance.crossing import Crossings
from headrace.engines.conformance.subject import (
    LOOK_S,
    WAIT_S,
    NotConforming,
    Subject,
    joined_chunks,
    require,
    require_whole,
    until_sampled,
)
from headrace.engines.protocol import (
    EngineError,
    FinishReason,
    GenerateRequest,
    RequestError,
    SwapMode,
    TokenChunk,
)
from headrace.runtime.protocol import WaitTimeout
from headrace.weights.plane import WeightError, WeightReceiver

_ABORT_S = 30.0
"""In which a request that waits, and is aborted, has ended."""
_DEATH_S = 30.0
"""In which whoever waits for an engine that has died must have been told so."""
_LONG = 400
"""Tokens of a prompt: several blocks of any engine's cache; vLLM's have 128 on a CPU, and one that is not full is not
kept."""
_TRIES = 10
"""Of a swap: a fast engine may have ended all requests before it."""


Check = Callable[[Subject], Awaitable[None]]


async def tokens_are_the_models(subject: Subject) -> None:
    """Ids in, ids out, with the log-probs of the distribution that was sampled from."""
    requests = [
        subject.request(seed=seed, temperature=temperature, length=3 + 4 * seed)
        for seed, temperature in enumerate((1.0, 0.7, 1.3, 0.0))
    ]
    for request, answer in zip(requests, await _together(subject, requests), strict=True):
        subject.judge(request, answer)
        require(len(answer.tokens) == 16, f"{len(answer.tokens)} tokens, 16 were asked for")
        require(answer.finish_reason is FinishReason.LENGTH, f"it ended by {answer.finish_reason}, not LENGTH")


async def a_stop_token_ends_and_is_kept(subject: Subject) -> None:
    requests = [subject.request(200, seed=seed, stop_token_ids=subject.stops) for seed in range(8)]
    stopped = 0
    for request, answer in zip(requests, await _together(subject, requests), strict=True):
        subject.judge(request, answer)
        places = np.flatnonzero(np.isin(answer.tokens, subject.stops))
        if answer.finish_reason is FinishReason.STOP:
            stopped += 1
            require(places.tolist() == [len(answer.tokens) - 1], "the stop token is the last one, and the only one")
        else:
            require(not len(places), "a stop token in the midst of what a limit ended")
    require(stopped > 0, f"none of 8 requests stopped at one of {len(subject.stops)} ids: choose likelier ones")


async def truncation_comes_with_its_kept_sets(subject: Subject) -> None:
    """Of each limit, and of both: the sets are the model's own. By the smallest top-p, one that is of the whole
    vocabulary cuts what top-k leaves as well."""
    for sampling in ({"top_k": 5}, {"top_k": 20, "top_p": 0.6}, {"top_k": 20, "top_p": 0.1}):
        requests = [replace(subject.request(seed=seed, **sampling), return_kept=True) for seed in range(4)]
        for request, answer in zip(requests, await _together(subject, requests), strict=True):
            subject.judge(request, answer)


async def new_weights_are_used_and_told(subject: Subject) -> None:
    """In each mode, with requests in flight: each token is of the version that it is said to be of. What `keep` goes on
    with has keys and values of the old weights, so it is judged up to the swap."""
    for mode in (SwapMode.KEEP, SwapMode.RECOMPUTE, SwapMode.DRAIN):
        for _ in range(_TRIES):
            crossed = await _swapped(subject, mode)
            if crossed or mode is SwapMode.DRAIN:
                break
        require(crossed == 0 or mode is not SwapMode.DRAIN, "a drained request has tokens of two versions")
        require(
            crossed > 0 or mode is SwapMode.DRAIN, f"in mode {mode} no request went on under new weights: none was left"
        )
        fresh = subject.request(seed=77)
        answer = await subject.whole(fresh)
        subject.judge(fresh, answer)
        require(set(answer.versions.tolist()) == {subject.engine.version.number}, "old weights after the swap")


async def a_full_engine_takes_new_weights(subject: Subject) -> None:
    """As many requests as it computes at once go on under new weights: whatever looks at these has room beside them,
    and waits for the end of none."""
    engine = subject.engine
    requests = [subject.request(subject.max_context - 32, seed=seed) for seed in range(engine.slots)]
    running = [asyncio.ensure_future(subject.whole(request)) for request in requests]
    await until_sampled(subject)
    await engine.update(_other(subject), SwapMode.KEEP)
    require(not all(each.done() for each in running), "new weights were taken once all that was in flight had ended")
    for request, answer in zip(requests, await asyncio.gather(*running), strict=True):
        require_whole(request, answer)


async def _swapped(subject: Subject, mode: SwapMode) -> int:
    """How many of 8 requests went on under new weights."""
    engine = subject.engine
    old, receiver = engine.version, _other(subject)
    requests = [subject.request(subject.max_context - 32, seed=seed) for seed in range(8)]
    running = [asyncio.ensure_future(subject.whole(request)) for request in requests]
    await until_sampled(subject)
    report = await engine.update(receiver, mode)
    require(report is not None and report.version == receiver.latest(), f"the swap reported {report}")
    require(engine.version == receiver.latest(), f"the engine says that it has {engine.version}")
    crossed, crossings = 0, Crossings(subject, old, engine.version)
    for request, answer in zip(requests, await asyncio.gather(*running), strict=True):
        require_whole(request, answer)
        new = np.flatnonzero(answer.versions == engine.version.number)
        is_crossed = 0 < len(new) < len(answer.tokens)
        crossed += is_crossed
        subject.judge(request, _first(answer, int(new[0])) if mode is SwapMode.KEEP and len(new) else answer)
        if mode is SwapMode.KEEP and is_crossed:
            crossings.add(request, answer, int(new[0]))
    crossings.judge()
    return crossed


async def nothing_is_found_of_old_weights(subject: Subject) -> None:
    """In each mode: a prompt that was computed before a swap is computed again, though an engine that keeps keys and
    values of prompts has found it once."""
    length = min(_LONG, subject.max_context // 2)
    for seed, mode in enumerate(SwapMode, start=50):
        for _ in range(2):
            before = subject.request(4, seed=seed, length=length)
            subject.judge(before, await subject.whole(before))
        await subject.engine.update(_other(subject), mode)
        after = subject.request(4, seed=seed, length=length)
        subject.judge(after, await subject.whole(after))


async def wrong_weights_are_refused(subject: Subject) -> None:
    """A tensor that is the other model's, with requests in flight: the update fails, nothing of it comes out, not even
    while it is looked at, and the next one is taken."""
    version = subject.engine.version
    other = "b" if subject.held[version] == "a" else "a"
    requests = [subject.request(subject.max_context // 2, seed=seed) for seed in range(8)]
    running = [asyncio.ensure_future(subject.whole(request)) for request in requests]
    await until_sampled(subject)
    try:
        await subject.engine.update(subject.publication(other, spoilt=True), SwapMode.RECOMPUTE)
    except (WeightError, EngineError):
        pass
    else:
        raise NotConforming("weights that are not what the swap check says were taken")
    require(subject.engine.version == version, f"it says that it has {subject.engine.version}, which was refused")
    await subject.engine.update(subject.publication(other), SwapMode.RECOMPUTE)
    for request, answer in zip(requests, await asyncio.gather(*running), strict=True):
        subject.judge(request, answer)
    request = subject.request(seed=3)
    subject.judge(request, await subject.whole(request))


async def an_aborted_request_ends(subject: Subject) -> None:
    """With what was sampled; one whose reader leaves, too. Then nothing of them is left running."""
    aborted, left = (subject.request(subject.max_context - 32, seed=seed) for seed in (1, 2))
    running = asyncio.ensure_future(subject.whole(aborted))
    async with aclosing(subject.engine.generate(left)) as chunks:
        async for chunk in chunks:
            if len(chunk.tokens):
                break
    subject.engine.abort([aborted.request_id, "nobody's"])
    answer = await running
    require(answer.finish_reason is FinishReason.ABORT, f"it ended by {answer.finish_reason}, not ABORT")
    subject.judge(aborted, answer)
    end = subject.clock.now() + WAIT_S
    while subject.engine.stats().running:
        require(subject.clock.now() < end, f"{subject.engine.stats().running} requests run on")
        await subject.clock.sleep(LOOK_S)


async def an_aborted_request_that_waits_ends(subject: Subject) -> None:
    """Without a token, though what it waits for has not come; and nothing is sampled for it once that comes."""
    engine = subject.engine
    receiver = _other(subject)
    request = replace(subject.request(seed=8), min_version=receiver.latest())
    waiting = asyncio.ensure_future(subject.whole(request))
    await subject.clock.sleep(0.2)
    require(not waiting.done(), "it did not wait for its version")
    engine.abort([request.request_id])
    try:
        answer = await subject.clock.wait_for(waiting, _ABORT_S, "the aborted request")
    except WaitTimeout as late:
        raise NotConforming(f"a request that waits was aborted, and waits on {_ABORT_S:g} s later") from late
    require(answer.finish_reason is FinishReason.ABORT, f"it ended by {answer.finish_reason}, not ABORT")
    require(not len(answer.tokens), "it has tokens, though its version has not come")
    before = engine.stats().generated_tokens
    await engine.update(receiver, SwapMode.RECOMPUTE)
    await subject.clock.sleep(0.2)
    require(engine.stats().generated_tokens == before, "tokens were sampled for a request that had been aborted")


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
    receiver = _other(subject)
    request = replace(subject.request(seed=6), min_version=receiver.latest())
    waiting = asyncio.ensure_future(subject.whole(request))
    await subject.clock.sleep(0.2)
    require(not waiting.done(), "it did not wait for its version")
    await subject.engine.update(receiver, SwapMode.RECOMPUTE)
    answer = await waiting
    subject.judge(request, answer)
    require(set(answer.versions.tolist()) == {subject.engine.version.number}, "tokens of an older version")


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
    await until_sampled(subject)
    kill()
    _, waiting = await asyncio.wait(reading, timeout=_DEATH_S)
    require(not waiting, f"{len(waiting)} of 8 requests wait on, {_DEATH_S:g} s after its death")
    told = await asyncio.gather(*reading, return_exceptions=True)
    lost = [isinstance(each, EngineError) and not isinstance(each, RequestError) for each in told]
    for request, chunks, is_lost, error in zip(requests, came, lost, told, strict=True):
        ended = bool(chunks) and chunks[-1].finish_reason is FinishReason.LENGTH and error is None
        require(is_lost or ended, f"request {request.request_id} was not told of it: {error!r}")
        if chunks:
            answer = joined_chunks(chunks)
            subject.judge(request, answer)
    require(any(lost), "none of 8 requests was in flight")
    require(engine.failure is not None, "it does not say that it has failed")
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
    a_full_engine_takes_new_weights,
    nothing_is_found_of_old_weights,
    wrong_weights_are_refused,
    an_aborted_request_ends,
    an_aborted_request_that_waits_ends,
    a_bad_request_fails_alone,
    no_token_is_older_than_was_asked_for,
)


async def _together(subject: Subject, requests: Sequence[GenerateRequest]) -> list[TokenChunk]:
    return list(await asyncio.gather(*(subject.whole(request) for request in requests)))


def _first(answer: TokenChunk, count: int) -> TokenChunk:
    return replace(
        answer,
        tokens=answer.tokens[:count],
        logprobs=answer.logprobs[:count],
        versions=answer.versions[:count],
        branches=answer.branches[:count],
        finish_reason=None,
    )


def _other(subject: Subject) -> WeightReceiver:
    """A version of the model that the engine does not hold."""
    return subject.publication("b" if subject.held[subject.engine.version] == "a" else "a")
