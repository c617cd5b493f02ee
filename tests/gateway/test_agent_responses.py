"""OpenAI's `/v1/responses`: which answer a request goes on from."""

from __future__ import annotations

import asyncio

import pytest
from chat_styles import CHATML, byte_tokenizer
from rollout_helpers import ScriptedEngine, chunk, policy

from headrace.config.gateway import GatewayConfig
from headrace.engines.protocol import SamplingParams
from headrace.experience.text.tokens import TextCodec
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.responses_api import parse_response


@pytest.mark.parametrize("named", [0, 1])
def test_a_response_goes_on_from_the_one_that_it_names_though_another_reads_alike(named: int) -> None:
    """Decoding leaves the special token in the second one out."""
    tokenizer = byte_tokenizer(CHATML)
    text = TextCodec(tokenizer)
    spelled = ["one<|im_end|>", "o<|eot_id|>ne<|im_end|>"]
    engine = ScriptedEngine(*(lambda request, said=said: chunk(text.encode_text(said)) for said in [*spelled, "two"]))

    async def play() -> AgentSession:
        stops = SamplingParams(max_new_tokens=300, stop_token_ids=(tokenizer.eos_token_id,))
        its = policy(engine, text=text, sampling=stops)
        session = AgentSession(its, GatewayConfig(), "http://127.0.0.1:1/v1", "key")
        for body in ({"input": "hi"}, {"input": "hi"}, {"input": "more", "previous_response_id": f"resp_{named}"}):
            answered = await session.chat(parse_response(body, "policy", session.conversation_of), 0)
            answered.delivered()
        return session

    asyncio.run(play())
    prompts = [text.decode(asked.prompt, keep_special_tokens=True) for asked in engine.requests]
    assert prompts[1] == prompts[0]
    assert prompts[2] == f"{prompts[0]}{spelled[named]}\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
