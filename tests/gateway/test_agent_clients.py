"""Other APIs than OpenAI's chat, by the official clients as they are, against a real listener."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from agent_listener import CALL, post, read, run, run_on
from chat_styles import CHATML
from rollout_helpers import ScriptedEngine, char_tokenizer, chunk, ids, says

from headrace.config.gateway import GatewayConfig
from headrace.engines.protocol import FinishReason
from headrace.experience.text.tokens import TextCodec
from headrace.gateway.agents.agent_session import AgentSession

LOOK = {"name": "look", "description": "a value", "input_schema": {"type": "object", "properties": {}}}
FUNCTION = {"type": "function", "name": "look", "description": "a value", "parameters": {"type": "object"}}


def root_of(session: AgentSession) -> str:
    return session.base_url.removesuffix("/v1")


def test_anthropics_client_calls_a_tool_goes_on_and_streams() -> None:
    anthropic = pytest.importorskip("anthropic")

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        async with anthropic.AsyncAnthropic(base_url=root_of(session), api_key=session.api_key) as client:
            usual: dict[str, Any] = {"model": session.model, "max_tokens": 16, "system": "be brief", "tools": [LOOK]}
            messages: list[Any] = [{"role": "user", "content": "hi"}]
            first = await client.messages.create(**usual, messages=messages)
            assert first.stop_reason == "tool_use"
            assert [block.type for block in first.content] == ["text", "tool_use"]
            used = first.content[1]
            assert used.input == {"key": "k"}
            result = {"type": "tool_result", "tool_use_id": used.id, "content": [{"type": "text", "text": "v"}]}
            messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
            async with client.messages.stream(**usual, messages=messages) as stream:
                text = "".join([part async for part in stream.text_stream])
                last = await stream.get_final_message()
            assert (text, last.stop_reason, last.usage.output_tokens) == ("done", "end_turn", 5)
            with pytest.raises(anthropic.NotFoundError, match="no model 'claude'"):
                await client.messages.create(model="claude", max_tokens=3, messages=messages)
            image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
            with pytest.raises(anthropic.BadRequestError, match="a block of type 'image'"):
                await client.messages.create(**usual, messages=[{"role": "user", "content": [image]}])
        return session.trajectories()

    (only,), _ = run(test, says("so " + CALL), says("done"))
    assert only.metadata["turns"] == 2
    assert read(only) == f"[system]be brief[user]hi[assistant]so {CALL}<eos>[tool]v[assistant]done<eos>"


def test_anthropics_client_counts_what_the_policy_would_see() -> None:
    """Also where it goes on from what was sampled, whose text is longer than what the history says of it. Nothing is
    asked for by it, and no history begins."""
    anthropic = pytest.importorskip("anthropic")

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        async with anthropic.AsyncAnthropic(base_url=root_of(session), api_key=session.api_key) as client:
            usual: dict[str, Any] = {"model": session.model, "system": "be brief", "tools": [LOOK]}
            messages: list[Any] = [{"role": "user", "content": "hi"}]
            for said in ("so", "done"):
                counted = await client.messages.count_tokens(**usual, messages=messages)
                answer = await client.messages.create(**usual, messages=messages, max_tokens=16)
                assert answer.usage.input_tokens == counted.input_tokens
                assert answer.content[0].text == said
                used = [{"type": "tool_result", "tool_use_id": each.id} for each in answer.content[1:]]
                messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": used}]
            await client.messages.count_tokens(**usual, messages=[{"role": "user", "content": "other"}])
            with pytest.raises(anthropic.NotFoundError, match="no model 'claude'"):
                await client.messages.count_tokens(model="claude", messages=messages)
        return session.trajectories()

    (only,), engine = run(test, says("so " + CALL.replace(" ", "   ")), says("done"))
    assert only.metadata["turns"] == only.metadata["requests"] == len(engine.requests) == 2
    assert only.metadata["refused"] == 1


@pytest.mark.parametrize(("said", "told"), [("no row", "Error: no row"), (None, "Error")])
def test_a_result_of_a_tool_that_failed_says_so(said: str | None, told: str) -> None:
    """And the history goes on from it."""

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        for is_error in (True, False, None):
            body = {"model": session.model, "max_tokens": 16, "tools": [LOOK], "messages": messages}
            status, answer = await post(session, body, "messages")
            assert status == 200
            result = {"type": "tool_result", "content": said, "is_error": is_error}
            results = [{**result, "tool_use_id": block.get("id")} for block in answer["content"]]
            messages += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": results}]
        return session.trajectories()

    call = '<tool_call>{"name": "look"}</tool_call>'
    (only,), _ = run(test, says(call), says(call), says("done"))
    results = "".join(f"{call}<eos>[tool]{result}[assistant]" for result in (told, said or ""))
    assert read(only) == f"[user]hi[assistant]{results}done<eos>"


def test_both_clients_list_the_model() -> None:
    anthropic, openai = pytest.importorskip("anthropic"), pytest.importorskip("openai")

    async def test(session: AgentSession, _: ScriptedEngine) -> None:
        async with anthropic.AsyncAnthropic(base_url=root_of(session), api_key=session.api_key) as client:
            page = await client.models.list()
            assert (page.has_more, page.first_id, page.last_id) == (False, "policy", "policy")
            (model,) = [each async for each in client.models.list()]
            assert model == await client.models.retrieve("policy")
            assert (model.id, model.type, model.display_name) == ("policy", "model", "policy")
            assert (model.lifecycle, model.created_at.timestamp()) == ("active", 0)
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            (same,) = [each async for each in client.models.list()]
            assert (same.id, same.object, same.owned_by) == ("policy", "model", "headrace")

    run(test)


def test_anthropics_stop_sequences_limits_and_streamed_calls() -> None:
    anthropic = pytest.importorskip("anthropic")

    async def test(session: AgentSession, _: ScriptedEngine) -> None:
        async with anthropic.AsyncAnthropic(base_url=root_of(session), api_key=session.api_key) as client:
            usual: dict[str, Any] = {"model": session.model, "messages": [{"role": "user", "content": "hi"}]}
            stopped = await client.messages.create(**usual, max_tokens=16, stop_sequences=["STOP"])
            assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == (
                "a",
                "stop_sequence",
                "STOP",
            )
            hints = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}, "service_tier": "auto"}
            cut = await client.messages.create(**usual, max_tokens=2, **hints)
            assert cut.stop_reason == "max_tokens"
            async with client.messages.stream(**usual, max_tokens=16, tools=[LOOK]) as stream:
                final = await stream.get_final_message()
            assert final.content[0].input == {"key": "k"}

    cut_off = lambda request: chunk(ids("ab"), FinishReason.LENGTH)  # noqa: E731
    run(test, says("aSTOPb"), cut_off, says(CALL))


def test_openais_client_uses_responses_whole_and_streamed() -> None:
    openai = pytest.importorskip("openai")

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            usual: dict[str, Any] = {"model": session.model, "instructions": "be brief", "tools": [FUNCTION]}
            items: list[Any] = [{"role": "user", "content": "hi"}]
            first = await client.responses.create(**usual, input=items)
            assert [item.type for item in first.output] == ["message", "function_call"]
            call = first.output[1]
            assert json.loads(call.arguments) == {"key": "k"}
            items += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "v"}]
            async with client.responses.stream(**usual, input=items) as stream:
                kinds = [event.type async for event in stream]
                last = await stream.get_final_response()
            assert last.output_text == "done"
            assert kinds[0] == "response.created"
            assert kinds[-1] == "response.completed"
            third = await client.responses.create(**usual, previous_response_id=last.id, input="more")
            assert third.output_text == "last"
            with pytest.raises(openai.NotFoundError, match="no response 'resp_99'"):
                await client.responses.create(**usual, previous_response_id="resp_99", input="more")
            form = {"format": {"type": "json_object"}}
            with pytest.raises(openai.BadRequestError, match=r"text\.format would sample"):
                await client.responses.create(**usual, input="x", text=form)
        return session.trajectories()

    (only,), _ = run(test, says("so " + CALL), says("done"), says("last"))
    assert only.metadata["turns"] == 3
    assert read(only) == (
        f"[system]be brief[user]hi[assistant]so {CALL}<eos>[tool]v[assistant]done<eos>[user]more[assistant]last<eos>"
    )


@pytest.mark.parametrize(
    ("said", "statuses"), [("ab", ["incomplete"]), ("so " + CALL, ["completed", "completed"])], ids=["text", "a call"]
)
def test_of_a_response_that_a_limit_cut_off_the_item_says_so_that_is_cut(said: str, statuses: list[str]) -> None:
    """As OpenAI's API has it, whole and streamed. A call that was read is whole."""
    openai = pytest.importorskip("openai")

    async def test(session: AgentSession, _: ScriptedEngine) -> None:
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            usual: dict[str, Any] = {"model": session.model, "input": "hi", "tools": [FUNCTION]}
            cut = await client.responses.create(**usual)
            async with client.responses.stream(**usual) as stream:
                events = [event async for event in stream]
            done = [event.item.status for event in events if event.type == "response.output_item.done"]
            for each in (cut, events[-1].response):
                assert (each.status, each.incomplete_details.reason) == ("incomplete", "max_output_tokens")
                assert [item.status for item in each.output] == statuses
            assert done == statuses

    run(test, *2 * [lambda request: chunk(ids(said), FinishReason.LENGTH)])


@pytest.mark.parametrize(
    ("route", "body", "words"),
    [
        ("messages", {"messages": "hi"}, "messages must be a list"),
        ("messages", {"messages": [{"role": "tool", "content": "x"}]}, "must have the role user or assistant"),
        ("messages", {"messages": [{"role": "user", "content": 3}]}, "text or a list of blocks"),
        ("messages", {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "bash"}]}, "no input_schema"),
        ("messages", {"messages": [{"role": "user", "content": "x"}], "tool_choice": {"type": "any"}}, "tool_choice"),
        ("messages", {"messages": [{"role": "user", "content": "x"}], "tool_choice": "tool"}, "tool_choice is tool"),
        ("messages", {"messages": [{"role": "user", "content": "x"}], "surprise": 1}, "unknown field 'surprise'"),
        (
            "messages",
            {"messages": [{"role": "user", "content": "x"}], "output_config": {"format": {"type": "json_schema"}}},
            "output_config.format would sample",
        ),
        ("responses", {"input": []}, "input must be text, or a list of items"),
        (
            "responses",
            {"input": [{"type": "item_reference", "id": "x"}]},
            "item 1 of input is of type",
        ),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "of type 'input_image'"),
        ("responses", {"input": "x", "tools": [{"type": "web_search"}]}, "is no function"),
        ("responses", {"input": [{"type": "function_call", "name": "a", "arguments": "{"}]}, "which is not JSON"),
        ("responses", {"input": "x", "background": True}, "background is True"),
    ],
)
def test_what_cannot_be_answered_is_said(route: str, body: dict[str, Any], words: str) -> None:
    async def test(session: AgentSession, _: ScriptedEngine) -> tuple[int, Any]:
        return await post(session, body, route)

    (status, answer), engine = run(test)
    assert status == 400
    assert words in answer["error"]["message"]
    assert not engine.requests


def test_a_retry_of_either_api_finds_its_answer() -> None:
    async def test(session: AgentSession, _: ScriptedEngine) -> None:
        for route, body in (
            ("messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9}),
            ("responses", {"input": "y"}),
        ):
            _, first = await post(session, body, route)
            assert (await post(session, body, route, x_stainless_retry_count="1"))[1] == first

    _, engine = run(test, says("a"), says("b"))
    assert len(engine.requests) == 2


@pytest.mark.parametrize("streams", [False, True])
def test_anthropics_tool_runner_plays_its_own_loop(streams: bool) -> None:
    """It begins by asking for a thread that the server keeps, and goes on without one."""
    anthropic = pytest.importorskip("anthropic")
    keys: list[str] = []

    @anthropic.beta_async_tool  # type: ignore[untyped-decorator]
    async def look(key: str) -> str:
        """A value."""
        keys.append(key)
        return f"v of {key}"

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        usual: dict[str, Any] = {"model": session.model, "max_tokens": 16}
        user = {"role": "user", "content": "hi"}
        async with anthropic.AsyncAnthropic(base_url=root_of(session), api_key=session.api_key) as client:
            runner = client.beta.messages.tool_runner(**usual, messages=[user], tools=[look], stream=streams)
            last = await runner.until_done()
            assert last.content[0].text == "done"
            with pytest.raises(anthropic.BadRequestError, match="message threads are not kept here"):
                await client.beta.messages.thread(**usual).send(user)
        return session.trajectories()

    (only,), engine = run(test, says(CALL + CALL), says("done"))
    assert keys == ["k", "k"]
    assert len(engine.requests) == 2
    assert read(only) == f"[user]hi[assistant]{CALL}{CALL}<eos>[tool]v of k[tool]v of k[assistant]done<eos>"


DEEP = "[" * 900 + "]" * 900
NESTED, HALF = "nested more than 64 deep", "half of a surrogate pair"


@pytest.mark.parametrize("within_text", [False, True])
@pytest.mark.parametrize(("value", "words"), [(DEEP, NESTED), ('"\\ud800"', HALF), ("1e400", "not JSON")])
@pytest.mark.parametrize("route", ["chat/completions", "messages", "responses"])
def test_what_no_template_can_read_is_refused_in_words(route: str, value: str, words: str, within_text: bool) -> None:
    """In the arguments of a call, as JSON and as text that is JSON; Anthropic has no such text."""
    value = '{"x": ' + value + "}"
    arguments = json.dumps(value) if within_text and route != "messages" else value
    body = {
        "chat/completions": '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": '
        '[{"function": {"name": "a", "arguments": ARGUMENTS}}]}, {"role": "tool", "content": "r"}]}',
        "messages": '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": '
        '"tool_use", "id": "1", "name": "a", "input": ARGUMENTS}]}, {"role": "user", "content": "r"}]}',
        "responses": '{"input": [{"type": "function_call", "call_id": "1", "name": "a", "arguments": ARGUMENTS}, '
        '{"type": "function_call_output", "call_id": "1", "output": "r"}]}',
    }[route].replace("ARGUMENTS", arguments)

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        headers = {"Authorization": f"Bearer {session.api_key}", "Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession(headers=headers) as client,
            client.post(f"{session.base_url}/{route}", data=body.encode()) as response,
        ):
            return response.status, await response.json()

    (status, answer), engine = run(test)
    assert status == 400
    assert words in answer["error"]["message"]
    assert not engine.requests


def test_half_a_pair_in_a_message_is_refused_in_words() -> None:
    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        return [
            await post(session, {"messages": [{"role": "user", "content": "a\ud800"}]}),
            await post(session, {"prompt": "a\ud800"}, "completions"),
        ]

    answers, _ = run(test)
    for status, answer in answers:
        assert (status, HALF in answer["error"]["message"]) == (400, True)


@pytest.mark.parametrize("value", ["1e400", '"\\ud800"', "[" * 200 + "]" * 200])
@pytest.mark.parametrize("route", ["chat/completions", "messages"])
def test_a_call_that_no_client_can_read_is_text(route: str, value: str) -> None:
    call = CALL.replace('"k"', value)

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        tool = LOOK if route == "messages" else {"type": "function", "function": FUNCTION}
        return await post(session, {"messages": BEGUN[:1], "tools": [tool]}, route)

    engine = ScriptedEngine(says(call))
    status, answer = run_on(engine, test, GatewayConfig(tool_parser="hermes"))
    assert status == 200
    said = answer["content"] if route == "messages" else answer["choices"][0]["message"]
    assert said == ([{"type": "text", "text": call}] if route == "messages" else {"role": "assistant", "content": call})


BEGUN = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The answer is"}]


@pytest.mark.parametrize(
    ("route", "body"),
    [("chat/completions", {"messages": BEGUN}), ("messages", {"messages": BEGUN}), ("responses", {"input": BEGUN})],
)
def test_a_turn_that_the_agent_begins_is_refused(route: str, body: dict[str, Any]) -> None:
    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        return await post(session, body, route)

    (status, answer), engine = run(test)
    assert status == 400
    assert "the last message is the assistant's" in answer["error"]["message"]
    assert not engine.requests


@pytest.mark.parametrize(
    ("route", "body", "tool"),
    [
        ("chat/completions", {"messages": BEGUN[:1]}, {"type": "function", "function": {"name": "look"}}),
        ("messages", {"messages": BEGUN[:1]}, LOOK),
        ("responses", {"input": "hi"}, FUNCTION),
    ],
)
def test_strict_is_left_out_and_counted(route: str, body: dict[str, Any], tool: dict[str, Any]) -> None:
    """The template sees the same tool with it and without."""
    wants = {"strict": True}
    strict = {**tool, "function": tool["function"] | wants} if "function" in tool else tool | wants

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        for each in (tool, strict):
            assert (await post(session, {**body, "tools": [each]}, route))[0] == 200
        return session.trajectories()[-1].metadata

    tokenizer = char_tokenizer()
    tokenizer.chat_template = CHATML
    engine = ScriptedEngine(says("one"))
    metadata = run_on(engine, test, GatewayConfig(), text=TextCodec(tokenizer))
    assert metadata["ignored_strict"] == 1
    assert engine.requests[0].prompt.tolist() == engine.requests[1].prompt.tolist()
