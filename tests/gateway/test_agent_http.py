"""Agents' sessions over a real listener: keys, retries, connections that break, what is refused, official clients."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from agent_listener import CALL, CHAT, TOOL, gateway_at_work, post, run, run_on
from rollout_helpers import EOS, ScriptedEngine, chunk, hangs, ids, policy, says

from headrace.config.gateway import GatewayConfig
from headrace.engines.protocol import EngineError, GenerateRequest, TokenChunk
from headrace.gateway.agents.agent_gateway import AgentGateway
from headrace.gateway.agents.agent_requests import ChatRequest
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.token_tree import Node
from headrace.runtime.inline import InlineRuntime


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition did not come true in 5 s")


def said(answer: tuple[int, Any]) -> str:
    status, body = answer
    assert status == 200, body
    return str(body["choices"][0]["message"]["content"])


class Held(ScriptedEngine):
    """Answers once it may."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self.go = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> Any:
        await self.go.wait()
        async for each in super().generate(request):
            yield each


def test_of_conversations_that_have_no_room_nothing_is_kept() -> None:
    """Else an agent that tries on, each time with another one, has all of them in memory until its episode ends."""

    def held() -> int:
        gc.collect()
        return sum(isinstance(each, ChatRequest | Node) for each in gc.get_objects())

    async def test(session: AgentSession, _: ScriptedEngine) -> None:
        before = held()
        for streams in (False, True):
            for length in range(200, 205):
                body = {"messages": [{"role": "user", "content": "a" * length}], "stream": streams}
                status, told = await post(session, body)
                assert (status, told["error"]["code"]) == (400, "context_length_exceeded")
        await until(lambda: held() == before)

    run(test)


def test_of_requests_that_wait_for_an_answer_no_body_is_kept() -> None:
    """A retry of what runs is not refused, so there is no end to how many wait."""
    mib = 2**20
    body = json.dumps({**CHAT, "metadata": {"of": "a" * mib}}).encode()

    async def test(session: AgentSession, engine: Held) -> None:
        headers = {"Authorization": f"Bearer {session.api_key}", "Content-Type": "application/json"}
        async with aiohttp.ClientSession(headers=headers) as client:

            async def ask(retry: int) -> int:
                own = {"x-stainless-retry-count": str(retry)}
                async with client.post(f"{session.base_url}/chat/completions", data=body, headers=own) as response:
                    return response.status

            tracemalloc.start()
            try:
                asking = [asyncio.create_task(ask(retry)) for retry in range(9)]
                await until(lambda: session.exchanges.retries == 8)
                assert tracemalloc.get_traced_memory()[0] < 4 * mib
            finally:
                tracemalloc.stop()
            engine.go.set()
            assert await asyncio.gather(*asking) == [200] * 9

    run_on(Held(says("one")), test, GatewayConfig(), max_context=200)


def test_equal_bodies_are_two_samples_and_a_retry_is_none() -> None:
    async def test(session: AgentSession, _: ScriptedEngine) -> list[str]:
        answers = [await post(session, CHAT) for _ in range(2)]
        answers.append(await post(session, CHAT, x_stainless_retry_count="1"))
        answers.append(await post(session, {**CHAT, "n": 1}, x_stainless_retry_count="2"))
        assert (await post(session, {**CHAT, "n": 65}, x_stainless_retry_count="1" * 5000))[0] == 400
        assert len(session.trajectories()) == 3
        return [said(answer) for answer in answers]

    heard, engine = run(test)
    assert heard == ["one", "two", "two", "three"], "another body is no retry, whatever the client says"
    assert len(engine.requests) == 3


def test_a_retry_of_one_that_found_no_room_is_a_sample_of_its_own() -> None:
    """As the official clients retry what is answered with 429."""

    async def test(session: AgentSession, engine: Held) -> list[str]:
        first = asyncio.ensure_future(post(session, CHAT))
        await until(lambda: session.exchanges.running == 1)
        assert (await post(session, CHAT))[0] == 429
        engine.go.set()
        heard = said(await first)
        return [heard, said(await post(session, CHAT, x_stainless_retry_count="1"))]

    config = GatewayConfig(max_concurrent_requests=1)
    assert run_on(Held(says("one"), says("two")), test, config, max_context=200) == ["one", "two"]


def test_a_request_whose_connection_broke_is_answered_when_it_comes_again() -> None:
    engine = Held(says("one"), says("two"))

    async def main() -> None:
        runtime = InlineRuntime()
        gateway = AgentGateway(GatewayConfig(), runtime)
        await gateway.start()
        try:
            async with gateway.open(policy(engine, chat=True)) as session:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(post(session, CHAT), 0.3)
                await asyncio.sleep(0.1)
                engine.go.set()
                assert said(await post(session, CHAT)) == "one"
                assert said(await post(session, CHAT)) == "two", "it was delivered: this is another sample"
                assert session.trajectories()[-1].metadata["retries"] == 1
        finally:
            await gateway.close()
            await runtime.close()

    asyncio.run(main())
    assert len(engine.requests) == 2


def test_keys_tell_episodes_apart_and_end_with_them() -> None:
    async def test(session: AgentSession, _: ScriptedEngine) -> list[tuple[int, str]]:
        seen = []
        for key in ("", "hr-7-00", "hr-0-" + "0" * 32, "hr-1-" + session.api_key.rpartition("-")[2]):
            status, body = await post(session, CHAT, Authorization=f"Bearer {key}")
            seen.append((status, body["error"]["code"]))
        session.close()
        status, body = await post(session, CHAT)
        return [*seen, (status, body["error"]["code"])]

    answers, engine = run(test)
    assert answers == [(401, "invalid_api_key")] * 4 + [(401, "episode_closed")]
    assert not engine.requests


class Slow:
    """A request whose body comes in two halves."""

    def __init__(self, session: AgentSession, route: str, body: Any) -> None:
        self._at, self._key = urlsplit(session.base_url), session.api_key
        self._route, self._body = route, json.dumps(body).encode()

    async def __aenter__(self) -> Slow:
        self._reader, self._writer = await asyncio.open_connection(self._at.hostname, self._at.port)
        head = f"POST {self._at.path}/{self._route} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._key}\r\n"
        size = f"Connection: close\r\nContent-Type: application/json\r\nContent-Length: {len(self._body)}\r\n\r\n"
        self._writer.write((head + size).encode() + self._body[:9])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    def finish(self) -> None:
        self._writer.write(self._body[9:])

    async def drain(self) -> None:
        """Until most of what was sent is read."""
        await self._writer.drain()

    async def answer(self) -> tuple[int, Any]:
        """With the status."""
        head, _, body = (await self._reader.read()).partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("route", ["chat/completions", "messages", "messages/count_tokens"])
def test_a_request_whose_body_ends_after_its_episode_is_not_answered(route: str) -> None:
    async def test(session: AgentSession, _: ScriptedEngine) -> tuple[int, Any]:
        async with Slow(session, route, {**CHAT, "max_tokens": 3}) as slow:
            await asyncio.sleep(0.2)
            session.close()
            slow.finish()
            return await slow.answer()

    (status, body), engine = run(test)
    assert status == 401
    assert "the episode of this key was closed" in body["error"]["message"]
    assert not engine.requests


@pytest.mark.parametrize("route", ["chat/completions", "messages/count_tokens"])
def test_no_more_bodies_are_read_at_once_than_requests_may_run(route: str) -> None:
    """The others wait, and are answered."""
    body = {**CHAT, "max_tokens": 3}
    large = {**body, "surprise": "x" * 48 * 2**20}  # more than what the kernel holds of a connection

    async def test(session: AgentSession, engine: ScriptedEngine) -> list[int]:
        async with Slow(session, route, body) as slow, Slow(session, route, large) as other:
            await asyncio.sleep(0.2)
            other.finish()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(other.drain(), 0.5)
            assert not engine.requests
            slow.finish()
            return [(await each.answer())[0] for each in (slow, other)]

    statuses, _ = run(test, max_concurrent_requests=1, max_body_mib=64)
    assert statuses == [200, 400], "the large one has an unknown field"


@pytest.mark.parametrize("name", [b"Authorization: Bearer ", b"x-api-key: "])
@pytest.mark.parametrize("key", [b"hr-0-\xff", b"hr-0-\xc3\xa9", b"\xff"])
def test_a_key_of_whatever_bytes_is_none_of_the_runs(name: bytes, key: bytes) -> None:
    async def test(session: AgentSession, _: ScriptedEngine) -> bytes:
        at = urlsplit(session.base_url)
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        try:
            path = f"{at.path}/chat/completions".encode()
            writer.write(b"POST " + path + b" HTTP/1.1\r\nHost: x\r\n" + name + key + b"\r\nConnection: close\r\n")
            writer.write(b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
            return await reader.read()
        finally:
            writer.close()

    answer, engine = run(test)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"the key is none of this run's" in answer
    assert not engine.requests


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"model": "gpt-4"}, 404, "no model 'gpt-4' here; ask for 'policy'"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty would sample from another distribution"),
        ({"logit_bias": {"3": 1}}, 400, "logit_bias would sample"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format would sample"),
        ({"guided_regex": "a*"}, 400, "guided_regex would sample"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "type 'image_url'"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, 400, "the context of 200 must also hold an answer"),
        ({"messages": []}, 400, "at least one message"),
        ({"tools": [{"nonsense": 1}]}, 400, "tool 1 is"),
        ({"tool_choice": "required"}, 400, "tool_choice is 'required'"),
        ({"tool_choice": {"type": "function", "function": "look"}}, 400, "give auto, none, required"),
        ({"surprise": 1}, 400, "unknown field 'surprise'"),
        ({"n": 1000}, 400, "between 1 and 64"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}]},
            400,
            "which is not JSON",
        ),
    ],
)
def test_what_cannot_be_answered_is_said(change: dict[str, Any], status: int, words: str) -> None:
    async def test(session: AgentSession, _: ScriptedEngine) -> tuple[int, Any]:
        return await post(session, {**CHAT, **change})

    (got, body), engine = run(test)
    assert got == status
    assert words in body["error"]["message"]
    assert not engine.requests


def test_a_body_that_is_not_packed_as_it_says_is_refused() -> None:
    async def test(session: AgentSession, _: ScriptedEngine) -> tuple[int, Any]:
        return await post(session, CHAT, **{"Content-Encoding": "gzip"})

    (status, body), _ = run(test)
    assert status == 400
    assert "the body cannot be" in body["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_refused_is_part_of_the_failure(stream: bool) -> None:
    """Of an agent that lets errors pass."""

    async def test(session: AgentSession, _: ScriptedEngine) -> None:
        wrong: list[dict[str, Any]] = [{"model": "gpt-4"}, {"surprise": 1}]
        for change in (*wrong, {"messages": [{"role": "user", "content": "x" * 300}]}):
            assert (await post(session, {**CHAT, "stream": stream, **change}))[0] in (400, 404)
        with pytest.raises(ValueError, match="base_url; 3 requests were refused, the last with: 400 the prompt has"):
            session.trajectories()
        assert (await post(session, CHAT))[0] == 200
        assert session.trajectories()[-1].metadata["refused"] == 3

    run(test)


@pytest.mark.parametrize(
    ("route", "more"),
    [("chat/completions", {}), ("messages", {"max_tokens": 3}), ("responses", {"input": "x", "messages": None})],
)
def test_a_body_that_is_too_large_is_refused_and_the_next_one_answered(route: str, more: dict[str, Any]) -> None:
    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        body = {**CHAT, **more}
        refused = await post(session, {**body, "user": "x" * 2**20}, route)
        assert (await post(session, body, route))[0] == 200
        return refused

    (status, answer), _ = run(test, max_body_mib=1)
    assert status == 413
    assert "the body is too large (gateway.max_body_mib)" in answer["error"]["message"]


def test_the_key_of_another_open_episode_is_refused() -> None:
    """At its address, and over a program's own socket; neither has it in its record."""
    engine = ScriptedEngine(says("one"))

    async def main() -> None:
        async with AsyncExitStack() as stack:
            gateway = await stack.enter_async_context(gateway_at_work())
            mine, other = [
                await stack.enter_async_context(gateway.open(policy(engine, chat=True, episode=number)))
                for number in range(2)
            ]
            theirs = f"Bearer {other.api_key}"
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.UnixConnector(await mine.socket()), headers={"Authorization": theirs}
                ) as client,
                client.post("http://here/v1/chat/completions", json=CHAT) as response,
            ):
                assert (response.status, (await response.json())["error"]["code"]) == (401, "invalid_api_key")
            assert not engine.requests
            status, answer = await post(mine, CHAT, Authorization=theirs)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
            assert "send the api_key that came with this base_url" in answer["error"]["message"]
            for session in (mine, other):
                with pytest.raises(ValueError, match="asked the policy for nothing"):
                    session.trajectories()

    asyncio.run(main())


def test_too_many_at_once_are_refused_and_an_end_aborts_them() -> None:
    async def test(session: AgentSession, engine: ScriptedEngine) -> Any:
        first = asyncio.create_task(post(session, CHAT))
        await until(lambda: bool(engine.requests))
        refused = await post(session, {**CHAT, "n": 2})
        session.close()
        return refused, await first

    (refused, first), engine = run(test, hangs, max_concurrent_requests=1)
    assert (refused[0], refused[1]["error"]["code"]) == (429, "rate_limit_exceeded")
    assert (first[0], first[1]["error"]["code"]) == (401, "episode_closed")
    assert engine.aborted == [engine.requests[0].request_id]


def test_a_tool_that_has_to_be_called_is_told_and_makes_no_branch() -> None:
    async def test(session: AgentSession, _: ScriptedEngine) -> None:
        body = {**CHAT, "tools": [TOOL]}
        _, first = await post(session, {**body, "tool_choice": "required"})
        message = first["choices"][0]["message"]
        assert first["choices"][0]["finish_reason"] == "tool_calls"
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "v"}
        await post(session, {**body, "messages": [*CHAT["messages"], message, result]})
        (only,) = session.trajectories()
        assert only.metadata["turns"] == 2

    _, engine = run(test, says(CALL), says("v"))
    told = "".join(chr(token - 3 + 32) if token > 2 else "?" for token in engine.requests[0].prompt.tolist())
    assert told.endswith("Answer with a call of a tool.[assistant]")


def logprobs(request: GenerateRequest) -> TokenChunk:
    return chunk([*ids("yes"), EOS])


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_says_that_it_lives_and_how_it_ended(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.gateway.agents.session_routes._QUIET_S", 0.05)
    go_on = asyncio.Event()

    async def held(session: AgentSession, engine: ScriptedEngine) -> str:
        generate = engine.generate

        async def slow(request: GenerateRequest) -> Any:
            await go_on.wait()
            async for each in generate(request):
                yield each

        engine.generate = slow  # type: ignore[method-assign]
        headers = {"Authorization": f"Bearer {session.api_key}"}
        async with (
            aiohttp.ClientSession(headers=headers) as client,
            client.post(f"{session.base_url}/chat/completions", json={**CHAT, "stream": True}) as response,
        ):
            assert (await response.content.readline()) == b": working\n"
            go_on.set()
            return (await response.content.read()).decode()

    rest, _ = run(held, (lambda request: EngineError("it died")) if fails else says("one"))
    assert rest.endswith("data: [DONE]\n\n")
    assert ('"code":"engine_error"' in rest) == fails
    assert ('"content":"one"' in rest) == (not fails)


def test_log_probs_and_streams_say_the_same() -> None:
    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        _, whole = await post(session, {**CHAT, "logprobs": True})
        assert [each["token"] for each in whole["choices"][0]["logprobs"]["content"]] == ["y", "e", "s", "<eos>"]
        headers = {"Authorization": f"Bearer {session.api_key}"}
        body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
        async with (
            aiohttp.ClientSession(headers=headers) as client,
            client.post(f"{session.base_url}/chat/completions", json=body) as response,
        ):
            lines = [line for line in (await response.text()).split("\n") if line.startswith("data: ")]
        assert len(session.trajectories()) == 2
        return [json.loads(line[6:]) for line in lines[:-1]]

    events, _ = run(test, logprobs)
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "yes"
    assert events[-1]["usage"]["completion_tokens"] == 4


def test_the_official_client_calls_a_tool_and_goes_on() -> None:
    openai = pytest.importorskip("openai")

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            messages: list[Any] = [{"role": "user", "content": "hi"}]
            first = await client.chat.completions.create(model=session.model, messages=messages, tools=[TOOL])
            message = first.choices[0].message
            call = message.tool_calls[0]
            assert json.loads(call.function.arguments) == {"key": "k"}
            messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "v"}]
            stream = await client.chat.completions.create(
                model=session.model, messages=messages, tools=[TOOL], stream=True
            )
            text = "".join([part.choices[0].delta.content or "" async for part in stream])
            assert text == "done"
            assert (await client.models.list()).data[0].id == "policy"
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="gpt-4", messages=messages)
        return session.trajectories()

    (only,), _ = run(test, says(CALL), says("done"))
    assert only.metadata["turns"] == 2
