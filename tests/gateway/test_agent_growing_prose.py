"""Streams of answers that the package `renderers` reads: whatever it makes of the whole, its beginning was told."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from model_renderers import with_tokens_of
from parted_engine import Parted, Parts
from qwen3_chats import TOOL
from rollout_helpers import policy

from headrace.config.gateway import GatewayConfig
from headrace.engines.protocol import FinishReason, SamplingParams
from headrace.experience.text.messages import Message
from headrace.experience.text.tokens import TextCodec
from headrace.gateway.agents.agent_requests import parse_agent_chat
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.growing import Live
from headrace.gateway.agents.model_renderer import known_models

CALL = '{"name": "look", "arguments": {"key": "k"}}'
WORDS = ("so", " a b", "é", "\n", " ", "{", "<", CALL, "STOP", "<function=look>", "</function>", '<invoke name="look">')
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
NAMES = sorted(set(known_models().values()) - {"gpt-oss"})
RENDERERS = {name: with_tokens_of(name) for name in NAMES}


def grown(name: str, parts: Parts, **asked: Any) -> list[Message]:
    """What was certain of an answer at each moment, and at last the whole."""
    tokenizer, renderer = RENDERERS[name]
    closing = tuple(renderer._of({}).get_stop_token_ids())
    seen: list[Message] = []

    async def play() -> None:
        sampling = SamplingParams(max_new_tokens=2000, stop_token_ids=closing)
        its = policy(Parted(parts), text=TextCodec(tokenizer), sampling=sampling)
        session = AgentSession(its, GatewayConfig(), "http://127.0.0.1:1/v1", "key", renderer=renderer)
        body = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], **asked}
        live = Live()
        task = asyncio.create_task(session.chat(parse_agent_chat(body, "policy"), 0, live))
        while not task.done():
            await asyncio.sleep(0)
            seen.extend(dict(each.message) for each in live.so_far() if each.finish_reason is None)
        seen.append(task.result().choices[0].message)

    asyncio.run(play())
    return seen


def spelt(name: str, text: str) -> list[int]:
    """Letter by letter, so that no token of it is a mark."""
    return [token for letter in text for token in RENDERERS[name][0](letter)["input_ids"]]


@st.composite
def answers(draw: st.DrawFn) -> tuple[str, Parts]:
    """Of a family: words, its marks and what only looks like them, in any parts, with any end."""
    name = draw(st.sampled_from(NAMES))
    tokenizer, renderer = RENDERERS[name]
    closing = renderer._of({}).get_stop_token_ids()
    marks = [mark for mark in renderer.marks if mark not in closing]
    known = [[token] for mark in MARKS if (token := tokenizer.convert_tokens_to_ids(mark)) in marks]
    words = [spelt(name, word) for word in (*WORDS, *MARKS)]
    said = draw(st.lists(st.sampled_from(words) | st.sampled_from(known + [[mark] for mark in marks]), max_size=8))
    tokens = [*draw(st.sampled_from([[], *known])), *(token for each in said for token in each)]
    edges = sorted({0, len(tokens), *draw(st.lists(st.integers(0, len(tokens)), max_size=20))})
    parts: Parts = [(tokens[a:b], None) for a, b in pairwise(edges)]
    end: tuple[list[int], FinishReason] = (closing[:1], FinishReason.STOP)
    return name, [*parts, draw(st.sampled_from([end, ([], FinishReason.LENGTH)]))]


@examples(deadline=None, max_examples=150)
@given(
    answer=answers(),
    stop=st.sampled_from([[], ["STOP"], ["so", "</th"]]),
    tool_choice=st.sampled_from(["auto", "none"]),
)
def test_what_is_told_is_the_beginning_of_what_is_read(
    answer: tuple[str, Parts], stop: list[str], tool_choice: str
) -> None:
    check(grown(*answer, stop=stop, tool_choice=tool_choice))


@pytest.mark.parametrize("name", NAMES)
def test_no_token_takes_back_what_was_told(name: str) -> None:
    closing = RENDERERS[name][1]._of({}).get_stop_token_ids()
    for mark in set(RENDERERS[name][1].marks) - set(closing):
        for head in ("so", "<think>so", "</think>so"):
            said = RENDERERS[name][0](head)["input_ids"]
            check(grown(name, [(said, None), ([mark], None), (spelt(name, "a"), None), ([], FinishReason.LENGTH)]))


def check(grown: list[Message]) -> None:
    *seen, whole = grown
    thought = whole.get("reasoning_content") or ""
    for message in seen:
        assert whole["content"].startswith(message["content"])
        assert thought.startswith(message.get("reasoning_content", ""))
        assert "tool_calls" not in message
        assert not message["content"] or message.get("reasoning_content", "") == thought, "a thought comes before"


def test_prose_comes_as_it_is_sampled() -> None:
    tokenizer, _ = RENDERERS["qwen3"]
    tokens = tokenizer("<think>\nwhy\n</think>\n\nSo it is. <tool_call>\n" + CALL)["input_ids"]
    parts: Parts = [*(([token], None) for token in tokens), ([tokenizer.eos_token_id], FinishReason.STOP)]
    seen = [(message.get("reasoning_content", ""), message["content"]) for message in grown("qwen3", parts)]
    assert list(dict.fromkeys(seen))[:-1] == [
        *[("", ""), ("w", ""), ("wh", ""), ("why", "")],
        *(("why", text) for text in ("S", "So", "So i", "So it", "So it i", "So it is", "So it is.")),
    ]


def test_most_families_write_prose() -> None:
    """The others may think again behind what they said, have channels, or think though their prompt does not say so."""
    silent = []
    for name in NAMES:
        seen = grown(name, [(spelt(name, "so it"), None), (spelt(name, " is"), None), ([], FinishReason.LENGTH)])
        if not any(message["content"] or message.get("reasoning_content") for message in seen[:-1]):
            silent.append(name)
    assert silent == ["deepseek-v4", "gemma4", "glm-4.5", "inkling"]
