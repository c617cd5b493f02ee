"""Streamed answers by the official clients, while the engine is at work: each first part is read before the next may be
sampled."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from agent_listener import CALL, CHAT, TOOL, post, run_on
from pieces_engine import PiecesEngine
from rollout_helpers import ScriptedEngine, char_tokenizer

from headrace.config.gateway import GatewayConfig
from headrace.engines.protocol import EngineError, FinishReason, SamplingParams
from headrace.experience.text.tokens import TextCodec
from headrace.gateway.agents.agent_session import AgentSession

TOKENIZER = char_tokenizer(chat=True)
TOKENIZER.chat_template += "{# reasoning_content #}"
HERMES = GatewayConfig(tool_parser="hermes")
PIECES = ("<think>wh", "y</think>", "so ", CALL[:20], CALL[20:])
LOOK = {"name": "look", "description": "a value", "input_schema": {"type": "object", "properties": {}}}
FUNCTION = {"type": "function", "name": "look", "description": "a value", "parameters": {"type": "object"}}


def run(engine: PiecesEngine, test: Any, *others: ScriptedEngine) -> Any:
    sampling = SamplingParams(max_new_tokens=500, stop_token_ids=(TOKENIZER.eos_token_id,))
    return run_on(engine, test, HERMES, *others, text=TextCodec(TOKENIZER), sampling=sampling)


def heard(engine: PiecesEngine) -> None:
    """The client has the first part, and the engine has not gone on: let it."""
    assert engine.ended == 0
    engine.let()


def test_a_chat_comes_as_it_is_sampled() -> None:
    openai = pytest.importorskip("openai")
    from openai.lib.streaming.chat import ChatCompletionStreamState

    async def test(session: AgentSession, engine: PiecesEngine) -> None:
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            asked = {"model": session.model, "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}
            engine.let(1)
            options = {"stream": True, "stream_options": {"include_usage": True}}
            parts, state = [], ChatCompletionStreamState()
            async for part in await client.chat.completions.create(**asked, **options):
                parts.append(part)
                state.handle_chunk(part)
                if len(parts) == 2:
                    assert part.choices[0].delta.reasoning_content == "wh"
                    heard(engine)
            told = state.get_final_completion()
            whole = await client.chat.completions.create(**asked)
        assert [call.function.arguments for call in told.choices[0].message.tool_calls] == ['{"key": "k"}']
        assert told.choices[0].message.reasoning_content == whole.choices[0].message.reasoning_content == "why"
        assert told.choices[0].message.content == whole.choices[0].message.content == "so"
        assert told.choices[0].finish_reason == whole.choices[0].finish_reason == "tool_calls"
        assert told.usage == whole.usage

    engine = PiecesEngine(PIECES)
    run(engine, test)
    assert [request.soon for request in engine.requests] == [True, False]


def test_completions_come_as_they_are_sampled() -> None:
    openai = pytest.importorskip("openai")

    async def test(session: AgentSession, engine: PiecesEngine) -> None:
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            asked = {"model": session.model, "prompt": "x", "stop": ["STOP"]}
            engine.let(1)
            texts = []
            async for part in await client.completions.create(**asked, stream=True):
                texts.append(part.choices[0].text)
                assert engine.ended == 0
                engine.let(1)
            assert part.choices[0].finish_reason == "stop"
            assert texts == ["one ", "two", ""], "ST may be the beginning of the stop"
            engine.let()
            assert (await client.completions.create(**asked)).choices[0].text == "one two"

    run(PiecesEngine(["one ", "twoST", "OP three"]), test)


def test_anthropics_messages_come_as_they_are_sampled() -> None:
    anthropic = pytest.importorskip("anthropic")

    async def test(session: AgentSession, engine: PiecesEngine) -> None:
        root = session.base_url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(base_url=root, api_key=session.api_key) as client:
            asked = {"model": session.model, "max_tokens": 400, "tools": [LOOK]}
            asked["messages"] = [{"role": "user", "content": "hi"}]
            engine.let(1)
            kinds = []
            async with client.messages.stream(**asked) as stream:
                async for event in stream:
                    kinds.append(event.type)
                    if event.type == "thinking" and event.snapshot == "wh":
                        heard(engine)
                told = await stream.get_final_message()
            whole = await client.messages.create(**asked)
        assert kinds[0] == "message_start"
        assert kinds.count("thinking") == 2
        assert [block.type for block in told.content] == ["thinking", "text", "tool_use"]
        own = {"id": None, "parsed_output": None}
        told_blocks, blocks = ([{**block.to_dict(), **own} for block in each.content] for each in (told, whole))
        assert told_blocks == blocks
        assert (told.stop_reason, told.usage) == (whole.stop_reason, whole.usage)

    run(PiecesEngine(PIECES), test)


def test_responses_come_as_they_are_sampled() -> None:
    openai = pytest.importorskip("openai")

    async def test(session: AgentSession, engine: PiecesEngine) -> None:
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            asked = {"model": session.model, "input": "hi", "tools": [FUNCTION]}
            engine.let(1)
            kinds = []
            async with client.responses.stream(**asked) as stream:
                async for event in stream:
                    kinds.append(event.type.removeprefix("response."))
                    if event.type == "response.reasoning_text.delta" and event.delta == "wh":
                        heard(engine)
                told = await stream.get_final_response()
            whole = await client.responses.create(**asked)
            wants: Any = {**asked, "include": ["message.output_text.logprobs"]}
            engine.let(10)
            async with client.responses.stream(**wants) as stream:
                with_tokens = [each.logprobs async for each in stream if each.type == "response.output_text.delta"]
                (part,) = (await stream.get_final_response()).output[1].content
            (same,) = (await client.responses.create(**wants)).output[1].content
        assert [each.token for each in same.logprobs] == [*"".join(PIECES), "<eos>"]
        assert [each.to_dict() for each in part.logprobs] == [each.to_dict() for each in same.logprobs]
        assert sum(map(len, with_tokens)) == len(same.logprobs)
        item, done = ["output_item.added", "content_part.added"], ["content_part.done", "output_item.done"]
        call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"]
        assert kinds == [
            *("created", "in_progress"),
            *(*item, "reasoning_text.delta", "reasoning_text.delta", "reasoning_text.done", *done),
            *(*item, "output_text.delta", "output_text.done", *done),
            *(*call, "output_item.done"),
            "completed",
        ]
        assert [each.type for each in told.output] == [each.type for each in whole.output]
        assert told.output_text == whole.output_text == "so"
        assert json.loads(told.output[2].arguments) == {"key": "k"}
        assert told.usage == whole.usage

    run(PiecesEngine(PIECES), test)


def test_what_interrupts_an_engine_is_not_seen() -> None:
    """One is interrupted, goes on, and fails; the other one goes on from there."""

    async def test(session: AgentSession, engine: PiecesEngine) -> str:
        engine.let()
        other.let()
        told = [line async for line in lines(session, {**CHAT, "stream": True})]
        assert len(session.trajectories()) == 1
        return "".join(event["choices"][0]["delta"].get("content") or "" for event in told)

    engine = PiecesEngine(["one", FinishReason.INTERRUPTED], [" two", EngineError("it failed")])
    other = PiecesEngine([" three"])
    assert run(engine, test, other) == "one two three"
    asked = [*engine.requests, *other.requests]
    assert [request.soon for request in asked] == [True, True, True]
    assert len(asked[2].prompt) == len(asked[0].prompt) + len("one two")


async def lines(session: AgentSession, body: dict[str, Any], **headers: str) -> Any:
    """Each event of a chat's stream, as it comes."""
    given = {"Authorization": f"Bearer {session.api_key}", **{k.replace("_", "-"): v for k, v in headers.items()}}
    async with (
        aiohttp.ClientSession(headers=given) as client,
        client.post(f"{session.base_url}/chat/completions", json=body) as response,
    ):
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])
            elif line.startswith(b": "):
                yield line.decode().strip()


async def content(session: AgentSession, body: dict[str, Any], **headers: str) -> str:
    told = [event async for event in lines(session, body, **headers)]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in told)


def test_several_choices_come_side_by_side() -> None:
    async def test(session: AgentSession, engine: PiecesEngine) -> list[tuple[int, Any]]:
        engine.let(1)
        seen = []
        async for event in lines(session, {**CHAT, "n": 2, "stream": True}):
            (choice,) = event["choices"]
            seen.append((choice["index"], choice["delta"].get("content"), choice["finish_reason"]))
            if choice["delta"].get("content"):
                engine.let(1)
        return seen

    openings = [(0, "", None), (1, "", None)]
    assert run(PiecesEngine(["a1", "a2"], ["b1", "b2"]), test) == [
        *openings,
        (0, "a1", None),
        (1, "b1", None),
        (0, "a2", None),
        (0, None, "stop"),
        (1, "b2", None),
        (1, None, "stop"),
    ]


def test_a_client_that_breaks_off_has_no_answer_until_it_asks_again() -> None:
    async def test(session: AgentSession, engine: PiecesEngine) -> None:
        body = {**CHAT, "stream": True}
        engine.let(1)
        stream = lines(session, body)
        while (await anext(stream))["choices"][0]["delta"].get("content") != "one":
            pass
        await stream.aclose()
        await asyncio.sleep(0.1)
        again = asyncio.create_task(content(session, body))
        await asyncio.sleep(0.1)
        assert session.exchanges.retries == 1
        with pytest.raises(ValueError, match="took no answer"):
            session.trajectories()
        engine.let()
        assert await again == "one two"
        assert await content(session, body, x_stainless_retry_count="1") == "one two"
        (only,) = session.trajectories()
        assert (only.response, only.metadata["retries"]) == ("one two", 2)

    engine = PiecesEngine(["one", " two"])
    run(engine, test)
    assert len(engine.requests) == 1


def test_an_answer_that_nobody_read_to_its_end_is_not_trained() -> None:
    async def test(session: AgentSession, engine: PiecesEngine) -> None:
        engine.let(1)
        stream = lines(session, {**CHAT, "stream": True})
        while (await anext(stream))["choices"][0]["delta"].get("content") != "one":
            pass
        await stream.aclose()
        await asyncio.sleep(0.1)
        engine.let()
        await post(session, {**CHAT, "messages": [{"role": "user", "content": "else"}]})
        (only,) = session.trajectories()
        assert (only.response, only.metadata["undelivered"]) == ("three", 1)

    run(PiecesEngine(["one", " two"], ["three"]), test)


def test_a_comment_comes_where_nothing_is_certain_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though tokens come: those of a call that is not whole."""
    monkeypatch.setattr("headrace.gateway.agents.session_routes._QUIET_S", 0.05)

    async def test(session: AgentSession, engine: PiecesEngine) -> list[Any]:
        seen = []
        engine.let(1)
        async for event in lines(session, {**CHAT, "tools": [TOOL], "stream": True}):
            seen.append(event if isinstance(event, str) else event["choices"][0]["delta"])
            if event == ": working":
                engine.let(1)
        return seen

    seen = run(PiecesEngine([CALL[:20], CALL[20:40], CALL[40:]]), test)
    assert seen[:3] == [": working", ": working", {"role": "assistant", "content": ""}]
    assert seen[3]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"key": "k"}'}


@pytest.mark.parametrize("first", ["one", None])
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_the_official_clients_raise_what_breaks_a_stream(api: str, first: str | None) -> None:
    """In its midst; before it has begun it is a plain answer, which they would ask for again."""
    openai, anthropic = pytest.importorskip("openai"), pytest.importorskip("anthropic")

    async def test(session: AgentSession, engine: PiecesEngine) -> None:
        engine.let(1 if first else 3)
        settings = {"api_key": session.api_key, "max_retries": 0}
        usual = {"model": session.model, "stream": True}
        said = {"messages": [{"role": "user", "content": "hi"}]}
        heard: list[Any] = []

        async def read() -> None:
            if api == "messages":
                client = anthropic.AsyncAnthropic(base_url=session.base_url.removesuffix("/v1"), **settings)
                stream = await client.messages.create(**usual, **said, max_tokens=9)
            else:
                client = openai.AsyncOpenAI(base_url=session.base_url, **settings)
                create = client.chat.completions.create if api == "chat" else client.responses.create
                stream = await create(**usual, **(said if api == "chat" else {"input": "hi"}))
            async for event in stream:
                heard.append(event)
                engine.let()

        with pytest.raises((openai.APIError, anthropic.APIError), match="it died") as raised:
            await read()
        assert bool(heard) == bool(first)
        if not first:
            assert raised.value.status_code == 503

    again = [EngineError("it died")]
    run(PiecesEngine([first, *again] if first else again, again), test)
