"""`gateway.sampling: client`: what a request is sampled by, what of it is trained, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rollout_helpers import EOS, ScriptedEngine, policy, says

from headrace.algorithms.kept_sets import KeptSets
from headrace.config.gateway import GatewayConfig
from headrace.engines.protocol import GenerateRequest, SamplingParams, TokenChunk
from headrace.experience.sample import GroupKey, Sample
from headrace.gateway.agents.agent_requests import AgentRequest, parse_agent_chat, parse_agent_text
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.messages_api import parse_messages
from headrace.gateway.agents.responses_api import parse_response
from headrace.gateway.errors import ApiError

USER = {"role": "user", "content": "hi"}
VOCAB = 98


class Telling(ScriptedEngine):
    """Says which ids are kept: of a cut distribution each token alone."""

    gives_kept_sets = True

    async def generate(self, request: GenerateRequest) -> Any:
        async for came in super().generate(request):
            yield replace(came, kept=self._kept(came)) if request.sampling.truncates else came

    def _kept(self, came: TokenChunk) -> KeptSets:
        return KeptSets.of(came.tokens, np.ones(len(came.tokens), np.int32), VOCAB)


class Mute(ScriptedEngine):
    gives_kept_sets = False


def played(
    play: Callable[[AgentSession], Any], engine: ScriptedEngine | None = None, *, trained: bool = True, **changes: Any
) -> tuple[list[Sample], list[SamplingParams]]:
    """The episode's samples, and what the engine was asked to sample by."""
    engine = engine or Telling(says("one"), says("two"), says("six"), says("ten"))

    async def run() -> list[Sample]:
        its = policy(engine, chat=True, return_kept=trained, most_kept=512 if trained else 0, **changes)
        session = AgentSession(its, GatewayConfig(sampling="client"), "http://127.0.0.1:1/v1", "key")
        await play(session)
        return [each.to_sample(GroupKey(0, 0, 0), 0, 0) for each in session.trajectories()]

    return asyncio.run(run()), [request.sampling for request in engine.requests]


async def ask(session: AgentSession, messages: list[Any], **given: Any) -> Any:
    answered = await session.chat(parse_agent_chat({"messages": messages, **given}, "policy"), 0)
    answered.delivered()
    return answered.choices[0].message


def test_each_request_is_sampled_as_it_says_and_what_it_leaves_out_is_the_runs() -> None:
    async def play(session: AgentSession) -> None:
        messages: list[Any] = [USER]
        for given in ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0}, {"seed": 3, "top_k": -1}, {"top_k": 7}):
            messages += [await ask(session, messages, **given), {"role": "user", "content": "go"}]

    usual = SamplingParams(16, temperature=0.75, stop_token_ids=(EOS,))
    (sample,), asked = played(play, sampling=usual)
    assert [(each.temperature, each.top_p, each.top_k) for each in asked] == [
        (0.5, 0.9, 512),
        (0.0, 1.0, 0),
        (0.75, 1.0, 0),
        (0.75, 1.0, 7),
    ], "top_p alone keeps 512 ids at most, as it does in rollout.sampling"
    assert {each.stop_token_ids for each in asked} == {(EOS,)}
    temperatures, kept = sample.temperatures, sample.kept
    assert temperatures is not None
    assert kept is not None
    chosen = temperatures[sample.loss_mask].tolist()
    assert chosen == [0.5] * 4 + [0.75] * 8, "the second turn is greedy: context"
    assert kept.counts[sample.loss_mask].tolist() == [1] * 4 + [0] * 4 + [1] * 4
    assert sample.metadata == {"turns": 4, "requests": 4, "greedy": 1, "ignored_seed": 1}


def test_a_greedy_episode_is_a_sample_of_which_nothing_is_trained() -> None:
    async def play(session: AgentSession) -> None:
        await ask(session, [USER], temperature=0)

    (sample,), _ = played(play)
    assert (sample.is_trainable, sample.response_tokens, sample.metadata["greedy"]) == (True, 0, 1)
    assert sample.temperatures is not None
    assert not sample.temperatures.any()


def test_in_an_evaluation_nothing_is_trained_and_all_that_was_answered_counts() -> None:
    async def play(session: AgentSession) -> None:
        await ask(session, [USER], temperature=0)
        await ask(session, [USER], top_k=1000, temperature=1)

    samples, asked = played(play, Mute(says("one")), trained=False, sampling=SamplingParams(16, temperature=0.0))
    assert [(each.temperature, each.top_k) for each in asked] == [(0.0, 0), (1.0, 1000)]
    assert [(sample.response_tokens, sample.temperatures, sample.kept) for sample in samples] == [(4, None, None)] * 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"temperature": 0.001}, "temperature is 0.001; it must be 0 (greedy), or between 0.01 and 100"),
        ({"temperature": -1}, "temperature is -1; it must be between 0 and 100"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"temperature": True}, "temperature is True; it must be a number"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0}, "top_p is 0; it must be above 0"),
        ({"top_p": 1.5}, "top_p is 1.5; it must be between 0 and 1"),
        ({"top_k": 513}, "top_k is 513; it must be between -1 and 512"),
        ({"top_k": 2.5}, "top_k is 2.5; it must be a whole number"),
        ({"min_p": 0.1}, "min_p above 0 is what no engine here samples by"),
        ({"min_p": 2}, "min_p is 2; it must be between 0 and 1"),
        ({"frequency_penalty": 0.5}, "frequency_penalty would sample from another distribution"),
        ({"logit_bias": {"3": 1}}, "logit_bias would sample"),
        ({"response_format": {"type": "json_object"}}, "response_format would sample"),
        ({"guided_regex": "a*"}, "guided_regex would sample"),
    ],
)
def test_what_cannot_be_sampled_by_is_said_and_costs_nothing(given: dict[str, Any], words: str) -> None:
    async def play(session: AgentSession) -> None:
        with pytest.raises(ApiError) as raised:
            await ask(session, [USER], **given)
        assert raised.value.status == 400
        assert words in str(raised.value)
        assert raised.value.body["error"]["param"] == next(iter(given))
        await ask(session, [USER], min_p=0)

    (sample,), asked = played(play)
    assert len(asked) == 1
    assert sample.metadata == {"turns": 1, "requests": 1}


def test_an_engine_that_cannot_say_what_is_kept_truncates_nothing_that_is_trained() -> None:
    async def play(session: AgentSession) -> None:
        with pytest.raises(ApiError, match="cannot say which tokens top_p and top_k keep"):
            await ask(session, [USER], top_p=0.5)
        await ask(session, [USER], top_p=0.5, temperature=0)
        await ask(session, [USER], temperature=0.5)

    samples, _ = played(play, Mute(says("one")))
    assert [sample.response_tokens for sample in samples] == [0, 4]


@pytest.mark.parametrize(
    ("parse", "body", "sampling"),
    [
        (parse_agent_chat, {"messages": [USER], "min_p": 0, "seed": 1}, {"min_p": 0, "seed": 1}),
        (parse_agent_text, {"prompt": "hi", "temperature": 0.5}, {"temperature": 0.5}),
        (parse_messages, {"messages": [USER], "max_tokens": 5, "top_k": 4, "top_p": None}, {"top_k": 4}),
        (
            lambda body, model: parse_response(body, model, lambda _: []),
            {"input": "hi", "temperature": 0, "top_p": 0.5},
            {"temperature": 0, "top_p": 0.5},
        ),
    ],
)
def test_every_api_tells_what_its_client_gave(
    parse: Callable[[Any, str], AgentRequest], body: dict[str, Any], sampling: dict[str, Any]
) -> None:
    assert parse(body, "policy").sampling == sampling
