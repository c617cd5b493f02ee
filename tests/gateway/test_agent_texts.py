"""Prompts of text that go on from answers: which ids the engine was asked with, and how often each is trained."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from chat_styles import metaspace_tokenizer
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from rollout_helpers import EOS, ScriptedEngine, chunk, ids, policy, says
from tokenizers import normalizers

from headrace.config.gateway import GatewayConfig
from headrace.engines.completions import Completion
from headrace.engines.protocol import FinishReason
from headrace.experience.text.tokens import TextCodec
from headrace.gateway.agents.agent_requests import parse_agent_text
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.known_texts import KnownTexts
from headrace.gateway.agents.token_tree import TokenTree
from headrace.rollout.trajectory import Trajectory


async def ask(session: AgentSession, prompt: str, *, delivered: bool = True, **more: Any) -> str:
    """The first choice's text, as the API returns it."""
    answered = await session.text(parse_agent_text({"prompt": prompt, **more}, "policy"), 0)
    if delivered:
        answered.delivered()
    return str(answered.choices[0].message["content"])


def played(play: Callable[[AgentSession], Awaitable[None]], *script: Any) -> tuple[list[Trajectory], list[str]]:
    """The histories, and what the engine was asked with."""
    engine = ScriptedEngine(*script)

    async def run() -> list[Trajectory]:
        session = AgentSession(policy(engine, max_context=None), GatewayConfig(), "http://127.0.0.1:1/v1", "key")
        await play(session)
        return list(session.trajectories())

    histories = asyncio.run(run())
    return histories, [shown(request.prompt.tolist()) for request in engine.requests]


def shown(tokens: list[int]) -> str:
    return "".join("<eos>" if token == EOS else chr(token - 3 + 32) for token in tokens)


def read(history: Trajectory) -> list[tuple[bool, str]]:
    """Whether it is trained, and the text, of one turn after another."""
    return [(is_chosen, shown(tokens.tolist())) for is_chosen, tokens in history.turns]


def stopped(text: str) -> Any:
    """An answer that a text of the client's ends."""
    return lambda request: chunk(ids(text))


def test_an_episode_of_sixteen_turns_of_text_is_one_history() -> None:
    async def play(session: AgentSession) -> None:
        prompt = "Q: 1"
        for turn in range(16):
            prompt += await ask(session, prompt) + f" saw {turn}."

    (only,), asked = played(play, says(" look"))
    turns = [(True, " look<eos>")]
    for turn in range(15):
        turns += [(False, f" saw {turn}."), (True, " look<eos>")]
    assert read(only) == [(False, "Q: 1"), *turns]
    assert asked[2] == "Q: 1 look<eos> saw 0. look<eos> saw 1.", "with what it sampled, and not its text encoded again"
    assert only.metadata == {"turns": 16, "requests": 16}


def test_what_an_agent_adds_gets_no_space_from_a_tokenizer_that_begins_texts_with_one() -> None:
    """As of Llama 2."""
    tokenizer = metaspace_tokenizer()
    replaced = tokenizer.backend_tokenizer.normalizer
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replaced])
    text = TextCodec(tokenizer)
    engine = ScriptedEngine(lambda request: chunk(tokenizer.convert_tokens_to_ids(["b", "b"])), says("a"))

    async def play() -> None:
        session = AgentSession(
            policy(engine, text=text, max_context=None), GatewayConfig(), "http://127.0.0.1:1", "key"
        )
        assert await ask(session, "ab") == "bb"
        await ask(session, "abbb.a")

    asyncio.run(play())
    assert text.decode(engine.requests[1].prompt) == "abbb.a"


@pytest.mark.parametrize(
    ("sampled", "returned", "goes_on", "path"),
    [
        ("do Obs:", "do ", "do Obs: 3", "Q: do Obs: 3"),
        ("do Obs:", "do ", "do = 3", "Q: do Obs:= 3"),
        ("do Obs:", "do ", "do Obs:", "Q: do Obs:"),
    ],
    ids=["written by the agent too", "left out by the agent", "and nothing more"],
)
def test_a_text_that_ended_an_answer_is_in_the_history_once(
    sampled: str, returned: str, goes_on: str, path: str
) -> None:
    async def play(session: AgentSession) -> None:
        assert await ask(session, "Q: ", stop=["Obs:"]) == returned
        await ask(session, "Q: " + goes_on, stop=["Obs:"])

    (only,), asked = played(play, stopped(sampled), says("so"))
    assert asked == ["Q: ", path]
    assert [text for is_chosen, text in read(only) if is_chosen] == [sampled, "so<eos>"]


@pytest.mark.parametrize(
    ("text", "rest"),
    [("Q:do Obs: 3", "3"), ("Q:do Obs:\n3", "\n3"), ("Q:do Only 3", "Only 3"), ("Q:do Ob", "Ob")],
)
def test_of_a_token_that_goes_beyond_the_text_that_ended_the_answer_what_agrees_is_seen(text: str, rest: str) -> None:
    """The token `: x` completes `Obs:`; whoever did not write that goes on from what was sampled, as in a chat."""
    texts, completion = KnownTexts(), asyncio.run(_completion("do Obs: x"))
    answer = TokenTree().answer(TokenTree().prompt(None, ids("Q:")), completion)
    texts.remember(answer, "Q:", "do ", "Obs:", "Obs: x")
    assert texts.find(text) == (answer, rest)


async def _completion(text: str) -> Completion:
    its = policy(ScriptedEngine(stopped(text)))
    return await its.generate(ids("Q:"))


def test_a_text_that_went_another_way_begins_where_it_still_agrees() -> None:
    async def play(session: AgentSession) -> None:
        first = "Q:" + await ask(session, "Q:")
        await ask(session, first + " go")
        await ask(session, first + " stay")  # the second answer was rewritten
        await ask(session, "Q: one")  # no answer is part of it
        await ask(session, first)  # nothing comes behind the answer

    histories, asked = played(play, says("one"), says("two"), says("three"), says("four"), says("five"))
    assert asked == ["Q:", "Q:one<eos> go", "Q:one<eos> stay", "Q: one", "Q:one"]
    chosen = [[text for is_chosen, text in read(each) if is_chosen] for each in histories]
    assert chosen == [["one<eos>", "two<eos>"], ["three<eos>"], ["four<eos>"], ["five<eos>"]], "each is trained once"


def test_what_a_limit_cut_off_is_not_gone_on_from_and_what_came_before_it_is() -> None:
    async def play(session: AgentSession) -> None:
        prompt = "Q:" + await ask(session, "Q:") + " go"
        await ask(session, prompt + await ask(session, prompt) + " on")

    histories, asked = played(play, says("one"), lambda _: chunk(ids("cu"), FinishReason.LENGTH), says("three"))
    assert asked[-1] == "Q:one<eos> gocu on"
    assert [read(each)[-1] for each in histories] == [(True, "cu"), (True, "three<eos>")]


def test_of_answers_that_read_alike_the_delivered_one_is_gone_on_from_and_one_that_was_not_counts_as_delivered() -> (
    None
):
    async def play(session: AgentSession) -> None:
        await ask(session, "Q:")
        await ask(session, "Q:", delivered=False)
        await ask(session, "Q:one go")
        await ask(session, "R:", delivered=False)
        await ask(session, "R:four go")

    script = (says("one"), says("one"), says("three"), says("four"), says("five"))
    histories, _ = played(play, *script)
    assert [[text for is_chosen, text in read(each) if is_chosen] for each in histories] == [
        ["one<eos>", "three<eos>"],
        ["four<eos>", "five<eos>"],
    ]
    assert histories[-1].metadata["undelivered"] == 1


def test_an_answer_without_text_is_no_part_of_a_longer_prompt() -> None:
    async def play(session: AgentSession) -> None:
        await ask(session, "Q:")
        await ask(session, "Q: 2")

    histories, asked = played(play, says(""), says("b"))
    assert (asked, len(histories)) == (["Q:", "Q: 2"], 2)


@examples(deadline=None, max_examples=40)
@given(
    turns=st.lists(st.tuples(st.integers(0, 9), st.text("ab", max_size=3), st.booleans()), min_size=1, max_size=8),
    answers=st.lists(st.text("ab", max_size=3), min_size=1, max_size=4),
)
def test_the_engine_reads_the_prompt_and_each_answer_is_trained_once(
    turns: list[tuple[int, str, bool]], answers: list[str]
) -> None:
    """Each prompt goes on from one of those before, with its answer or without it: texts agree by chance as well."""
    prompts: list[str] = []

    async def play(session: AgentSession) -> None:
        known = [""]
        for place, said, with_answer in turns:
            prompts.append(known[place % len(known)] + said or "q")
            answer = await ask(session, prompts[-1])
            known.append(prompts[-1] + (answer if with_answer else ""))

    script = [says(answers[number % len(answers)]) for number in range(len(turns))]
    histories, asked = played(play, *script)
    assert [each.replace("<eos>", "") for each in asked] == prompts
    chosen = [text for each in histories for is_chosen, text in read(each) if is_chosen]
    assert sorted(chosen) == sorted(f"{answers[number % len(answers)]}<eos>" for number in range(len(turns)))
