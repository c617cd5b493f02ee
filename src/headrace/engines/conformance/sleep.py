"""What is asked beside the rest of an engine that sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headrace.engines.conformance.subject import (
    NotConforming,
    Subject,
    joined_chunks,
    require,
    until_sampled,
)
from headrace.engines.protocol import (
    EngineError,
    FinishReason,
    SwapMode,
    Tag,
)


async def who_sleeps_samples_nothing_and_goes_on(subject: Subject) -> None:
    """With requests in flight, and one that comes meanwhile: none gets a token, all go on from what they have. Dropped
    weights come back by `update` alone, be it with the same version."""
    for tags in ((Tag.KV,), (Tag.WEIGHTS,), (Tag.WEIGHTS, Tag.KV)):
        await _slept(subject, tags)


async def _slept(subject: Subject, tags: Sequence[Tag]) -> None:
    engine = subject.engine
    requests = [subject.request(subject.max_context - 32, seed=seed) for seed in range(8)]
    running = [asyncio.ensure_future(subject.whole(request)) for request in requests]
    await until_sampled(subject)
    await engine.sleep(tags)
    require(engine.rests and set(engine.asleep) == set(tags), f"it sleeps, and says {engine.asleep} of {tags}")
    requests.append(subject.request(20, seed=9))
    running.append(asyncio.ensure_future(subject.whole(requests[-1])))
    before = engine.stats().generated_tokens
    await subject.clock.sleep(0.2)
    require(engine.stats().generated_tokens == before, "it samples while it sleeps")
    require(not running[-1].done(), "a request ended while it slept")
    if Tag.WEIGHTS in tags:
        try:
            await engine.wake(tags)
        except EngineError:
            pass
        else:
            raise NotConforming("it woke with weights that it had dropped")
        receiver = subject.publication("b" if subject.held[engine.version] == "a" else "a")
        report = await engine.update(receiver, SwapMode.RECOMPUTE)
        require(report is not None and engine.version == receiver.latest(), f"it woke with {engine.version}")
    await engine.wake(tags)
    require(not engine.rests and not engine.asleep, f"it is awake, and says {engine.asleep}")
    for request, answer in zip(requests, await asyncio.gather(*running), strict=True):
        subject.judge(request, answer)
    if Tag.WEIGHTS in tags:
        await engine.sleep(tags)
        await engine.update(receiver, SwapMode.RECOMPUTE)  # what it had
        await engine.wake(engine.asleep)
        subject.judge(request := subject.request(seed=78), await subject.whole(request))


async def who_is_sent_away_goes_on_elsewhere(subject: Subject) -> None:
    """With `sends_away` requests in flight end with INTERRUPTED and what was sampled, and so do those that come while
    it sleeps; here they go on on the same engine, once it is awake."""
    engine = subject.engine
    requests = [subject.request(subject.max_context - 32, seed=seed) for seed in range(8)]
    running = [asyncio.ensure_future(subject.chunks(request)) for request in requests]
    await until_sampled(subject)
    await engine.sleep(tuple(Tag), sends_away=True)
    begun = [joined_chunks(chunks) for chunks in await asyncio.gather(*running)]
    late = joined_chunks(await subject.chunks(subject.request(20, seed=9)))
    ends = {part.finish_reason for part in (*begun, late)}
    require(ends == {FinishReason.INTERRUPTED}, f"requests that it sent away ended by {ends}")
    require(not len(late.tokens), "it sampled while it slept")
    require(any(len(part.tokens) for part in begun), "what was sampled is lost")
    require(engine.stats().sent_away_tokens > 0, "it does not say what others compute again")
    await engine.update(subject.publication("b"), SwapMode.RECOMPUTE)
    await engine.wake(engine.asleep)
    for request, part in zip(requests, begun, strict=True):
        rest = replace(
            request,
            request_id=f"{request.request_id}.rest",
            prompt=np.concatenate([request.prompt, part.tokens], dtype=np.int32),
            sampling=replace(request.sampling, max_new_tokens=16),
        )
        asked = replace(request, sampling=replace(request.sampling, max_new_tokens=len(part.tokens) + 16))
        subject.judge(asked, joined_chunks([part, await subject.whole(rest)]))
