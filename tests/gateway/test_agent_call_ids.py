"""Ids of calls: those that a policy wrote, and those that are made for it; templates read both again."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from chat_styles import MISTRAL, byte_tokenizer
from rollout_helpers import ScriptedEngine, chunk, policy, says

from headrace.config.gateway import GatewayConfig
from headrace.engines.protocol import SamplingParams
from headrace.experience.text.append_only import rewriting
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.tokens import TextCodec
from headrace.gateway.agents.agent_requests import parse_agent_chat
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.answered import whole_chat
from headrace.gateway.agents.parsed_text import ParsedText, ToolCall
from headrace.gateway.agents.tool_calls import PARSERS, parse_tool_calls


@pytest.mark.parametrize(
    ("name", "text", "own"),
    [
        ("hermes", '<tool_call>{"name": "look", "arguments": {}, "id": "call_7"}</tool_call>', "call_7"),
        ("llama3_json", '{"name": "look", "parameters": {}, "id": "7"}', "7"),
        ("mistral", '[TOOL_CALLS] [{"name": "look", "arguments": {}, "id": "VvvODy9mT"}]', "VvvODy9mT"),
        ("mistral", "[TOOL_CALLS]look[CALL_ID]VvvODy9mT[ARGS]{}", "VvvODy9mT"),
        # Which is no id, or none that Mistral's templates take.
        ("hermes", '<tool_call>{"name": "look", "arguments": {}, "id": 7}</tool_call>', None),
        ("hermes", '<tool_call>{"name": "look", "arguments": {}, "id": ""}</tool_call>', None),
        ("mistral", '[TOOL_CALLS] [{"name": "look", "arguments": {}, "id": "call_7"}]', None),
        ("mistral", "[TOOL_CALLS]look[CALL_ID]abc[ARGS]{}", None),
    ],
)
def test_a_call_has_the_id_that_the_policy_wrote(name: str, text: str, own: str | None) -> None:
    assert parse_tool_calls(text, PARSERS[name]) == ParsedText("", (ToolCall("look", {}, own),))


TWICE = {
    "hermes": '<tool_call>{"name": "look", "arguments": {}}</tool_call>' * 2,
    "llama3_json": '{"name": "look", "parameters": {}}',
    "mistral": '[TOOL_CALLS] [{"name": "look", "arguments": {}}, {"name": "look", "arguments": {}}]',
    "qwen3_xml": "<tool_call><function=look></function></tool_call>" * 2,
}
"""Calls without ids; those of Llama are one to an answer."""


@pytest.mark.parametrize("name", PARSERS)
def test_other_ids_of_calls_have_nine_letters_and_digits_and_are_those_of_one_call(name: Any) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool], "n": 2}

    async def play() -> list[str]:
        engine = ScriptedEngine(says(TWICE[name]))
        session = AgentSession(policy(engine, chat=True), GatewayConfig(tool_parser=name), "", "key")
        answers = [whole_chat(await session.chat(parse_agent_chat(body, "policy"), 0)) for _ in range(20)]
        messages = [choice["message"] for answer in answers for choice in answer["choices"]]
        return [call["id"] for message in messages for call in message["tool_calls"]]

    found = asyncio.run(play())
    assert len(found) == len(set(found)) == 40 * (1 if name == "llama3_json" else 2)
    assert all(re.fullmatch("[A-Za-z0-9]{9}", each) for each in found)
    assert asyncio.run(play()) == found


@pytest.mark.parametrize("own", ["", ', "id": "VvvODy9mT"', ', "id": "call_7"'])
def test_mistrals_template_goes_on_from_calls(own: str) -> None:
    """It refuses ids that have not nine characters."""
    tokenizer = byte_tokenizer(MISTRAL, eos="</s>", more=["[TOOL_CALLS]"])
    text, end = TextCodec(tokenizer), tokenizer.convert_tokens_to_ids("</s>")
    call = f'[TOOL_CALLS] [{{"name": "look", "arguments": {{"key": "k"}}{own}}}]'
    script = [lambda request, said=said: chunk([*text.encode_text(said).tolist(), end]) for said in (call, call, "v")]
    engine = ScriptedEngine(*script)
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

    async def play() -> tuple[AgentSession, list[str]]:
        sampling = SamplingParams(max_new_tokens=300, stop_token_ids=(end,))
        session = AgentSession(policy(engine, text=text, sampling=sampling), GatewayConfig(), "", "key")
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        for _ in range(3):
            answered = await session.chat(parse_agent_chat({"messages": messages, "tools": [tool]}, "policy"), 0)
            answered.delivered()
            message = whole_chat(answered)["choices"][0]["message"]
            results = [
                {"role": "tool", "tool_call_id": each["id"], "content": "v"} for each in message.get("tool_calls", ())
            ]
            messages += [message, *results]
        return session, [each["tool_call_id"] for each in messages if each["role"] == "tool"]

    session, found = asyncio.run(play())
    assert found == (["VvvODy9mT"] * 2 if "Vvv" in own else ["c00000000", "c00010000"])
    (only,) = session.trajectories()
    assert only.metadata["turns"] == 3
    results = [f'[TOOL_RESULTS] {{"content": v, "call_id": "{each}"}}[/TOOL_RESULTS]' for each in found]
    read = text.decode(only.tokens, keep_special_tokens=True)
    assert read.endswith("".join(f"{call}</s>{result}" for result in results) + "v</s>")
    assert rewriting(ChatTemplate(tokenizer)) == []


def test_a_template_of_mistrals_that_writes_calls_otherwise_later_is_found() -> None:
    tokenizer = byte_tokenizer(MISTRAL.replace("'[TOOL_CALLS] ['", "'[TOOL_CALLS] [' if loop.last else '['"))
    assert rewriting(ChatTemplate(tokenizer)) == ["a tool's result"]
