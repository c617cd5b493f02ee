from __future__ import annotations

import asyncio
import hashlib

import numpy as np
import pytest
from rollout_helpers import EOS, ScriptedEngine, chunk, dead, hangs, ids, policy, says

from headrace.engines.protocol import EngineError, FinishReason, RequestError, TokenChunk
from headrace.experience.sample import GroupKey
from headrace.rollout.policy import GenerationAborted, noise_key
from headrace.runtime.protocol import WaitTimeout
from headrace.weights.version import INITIAL, Version

V1, V2 = Version(0, 1), Version(0, 2)


def test_a_completion_is_what_the_engine_sampled() -> None:
    engine = ScriptedEngine(says("ab"))
    completion = asyncio.run(policy(engine).generate(ids("q")))
    assert completion.tokens.tolist() == [*ids("ab"), EOS]
    assert completion.finish_reason is FinishReason.STOP
    assert completion.logprobs.tolist() == [-0.5] * 3
    (request,) = engine.requests
    assert request.sampling.max_new_tokens == 16
    assert request.min_version == INITIAL
    assert engine.aborted == []


def test_interruptions_are_hidden_and_each_token_keeps_its_version() -> None:
    engine = ScriptedEngine(
        lambda _: chunk([5, 6], FinishReason.INTERRUPTED, V1), lambda _: chunk([7, EOS], FinishReason.STOP, V2)
    )
    engine.version = V1
    completion = asyncio.run(policy(engine, min_version=V1).generate([40, 41]))
    assert completion.tokens.tolist() == [5, 6, 7, EOS]
    assert completion.versions.tolist() == [1, 1, 2, 2]
    first, second = engine.requests
    assert second.prompt.tolist() == [40, 41, 5, 6]
    assert (first.sampling.max_new_tokens, second.sampling.max_new_tokens) == (16, 14)
    assert first.noise_key == second.noise_key, "noise is keyed by absolute position, so a retry draws the same"
    assert first.request_id != second.request_id


def test_an_interruption_at_the_limit_ends_by_length() -> None:
    engine = ScriptedEngine(lambda _: chunk([5, 6], FinishReason.INTERRUPTED))
    completion = asyncio.run(policy(engine).generate([40], max_new_tokens=2))
    assert completion.tokens.tolist() == [5, 6]
    assert completion.finish_reason is FinishReason.LENGTH
    assert len(engine.requests) == 1


def test_an_interruption_before_the_first_token_is_asked_again() -> None:
    engine = ScriptedEngine(lambda _: chunk([], FinishReason.INTERRUPTED), says("a"))
    assert asyncio.run(policy(engine).generate([40])).tokens.tolist() == [*ids("a"), EOS]


def test_a_dead_engine_is_passed_over() -> None:
    first, second = ScriptedEngine(dead), ScriptedEngine(says("ok"))
    assert asyncio.run(policy(first, second).generate([40])).tokens.tolist() == [*ids("ok"), EOS]
    assert len(first.requests) == len(second.requests) == 1


def test_what_was_sampled_before_an_engine_died_is_kept() -> None:
    first = ScriptedEngine(lambda _: chunk([5, 6], FinishReason.INTERRUPTED), dead)
    second = ScriptedEngine(says("z"))
    client = policy(first, second)

    async def play() -> list[int]:
        return (await client.generate([40])).tokens.tolist()

    assert asyncio.run(play()) == [5, 6, *ids("z"), EOS]
    assert second.requests[0].prompt.tolist() == [40, 5, 6]


def test_failover_never_reaches_back_to_an_older_version() -> None:
    first = ScriptedEngine(dead, version=V2)
    old = ScriptedEngine(says("stale"), version=V1)
    with pytest.raises(EngineError, match="no engine is left for a request that needs v2 or newer"):
        asyncio.run(policy(first, old, min_version=V2).generate([40]))
    assert old.requests == []


def test_tokens_of_an_older_version_are_refused() -> None:
    engine = ScriptedEngine(lambda _: chunk([5], FinishReason.STOP, V1), version=V2)
    with pytest.raises(EngineError, match="asked for v2, but was served by v1"):
        asyncio.run(policy(engine, min_version=V2).generate([40]))
    assert len(engine.aborted) == len(engine.requests) == 3


def test_the_only_engine_dying_raises_its_error() -> None:
    with pytest.raises(EngineError, match="the engine died"):
        asyncio.run(policy(ScriptedEngine(dead)).generate([40]))


def test_no_more_than_three_engines_are_tried() -> None:
    engines = [ScriptedEngine(dead) for _ in range(5)]
    with pytest.raises(EngineError, match="the engine died"):
        asyncio.run(policy(*engines).generate([40]))
    assert sum(len(engine.requests) for engine in engines) == 3


def test_a_bad_request_is_not_tried_elsewhere() -> None:
    engines = [ScriptedEngine(lambda _: RequestError("id 999 is outside the vocabulary")) for _ in range(2)]
    with pytest.raises(RequestError, match="999"):
        asyncio.run(policy(*engines).generate([999]))
    assert sum(len(engine.requests) for engine in engines) == 1


def test_an_engine_that_ends_without_a_reason_failed() -> None:
    engine = ScriptedEngine(lambda _: chunk([], None))
    with pytest.raises(EngineError, match="without a finish reason"):
        asyncio.run(policy(engine).generate([40]))


def test_arrays_of_different_lengths_are_refused() -> None:
    engine = ScriptedEngine(
        lambda _: TokenChunk(np.array([1, 2]), np.array([0.0]), np.array([0]), np.array([0]), FinishReason.STOP)
    )
    with pytest.raises(EngineError, match="differ in length"):
        asyncio.run(policy(engine).generate([40]))


def test_an_abort_by_the_run_ends_the_episode() -> None:
    with pytest.raises(GenerationAborted):
        asyncio.run(policy(ScriptedEngine(lambda _: chunk([5], FinishReason.ABORT))).generate([40]))


def test_a_hanging_engine_is_given_up_and_its_request_aborted() -> None:
    engine = ScriptedEngine(hangs)
    with pytest.raises(WaitTimeout, match=r"completion of group 0/3#0, episode 0"):
        asyncio.run(policy(engine, request_timeout_s=0.05).generate([40]))
    assert engine.aborted == [engine.requests[0].request_id]


def test_the_context_limits_the_completion() -> None:
    engine = ScriptedEngine(says("a"))
    client = policy(engine, max_context=10)

    async def play() -> FinishReason:
        await client.generate([40] * 7)
        return (await client.generate([40] * 10)).finish_reason

    assert asyncio.run(play()) is FinishReason.LENGTH
    assert [request.sampling.max_new_tokens for request in engine.requests] == [3]


def test_the_noise_key_is_its_documented_hash() -> None:
    packed = b"".join(number.to_bytes(8, "little", signed=True) for number in (7, 0, 3, 1, 2, 0))
    expected = int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")
    assert noise_key(7, GroupKey(0, 3, 1), 2, 0) == expected < 2**64


def test_noise_differs_in_each_of_seed_epoch_position_attempt_episode_and_index() -> None:
    base = (0, 0, 0, 0, 0, 0)
    keys = {noise_key(s, GroupKey(e, p, a), ep, i) for s, e, p, a, ep, i in [base]}
    for place in range(6):
        s, e, p, a, ep, i = (1 if at == place else 0 for at in range(6))
        keys.add(noise_key(s, GroupKey(e, p, a), ep, i))
    assert len(keys) == 7
