"""`openai-agents` as it is: its own loop plays an episode, through both of its models, whole and streamed."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_listener import CALL, chosen, read, run
from rollout_helpers import ScriptedEngine, chunk, ids, says

from headrace.engines.protocol import FinishReason, GenerateRequest, TokenChunk
from headrace.gateway.agents.agent_session import AgentSession

agents = pytest.importorskip("agents")
openai = pytest.importorskip("openai")

SERVER = Path(__file__).parents[1] / "helpers" / "mcp_tools.py"
MODELS = pytest.mark.parametrize("responses", [True, False], ids=["responses", "chat"])


@asynccontextmanager
async def configured(session: AgentSession, responses: bool) -> AsyncIterator[Any]:
    """What a run of an agent is given, so that it asks in the episode."""
    async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
        provider = agents.OpenAIProvider(openai_client=client, use_responses=responses)
        yield agents.RunConfig(model=session.model, model_provider=provider, tracing_disabled=True)


async def played(asked: AgentSession, agent: Any, responses: bool, *, streams: bool = False, **more: Any) -> str:
    """The final output."""
    async with configured(asked, responses) as config:
        if not streams:
            return str((await agents.Runner.run(agent, "hi", run_config=config, **more)).final_output)
        result = agents.Runner.run_streamed(agent, "hi", run_config=config, **more)
        kinds = [event.name async for event in result.stream_events() if event.type == "run_item_stream_event"]
        assert kinds[-1] == "message_output_created"
        return str(result.final_output)


class Tool:
    """`look`, and the keys that were looked up."""

    def __init__(self) -> None:
        self.keys: list[str] = []

        @agents.function_tool
        async def look(key: str) -> str:
            """A value."""
            self.keys.append(key)
            return f"v of {key}"

        self.function = look


@MODELS
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
def test_its_loop_calls_a_tool_and_ends_with_one_history(responses: bool, streams: bool) -> None:
    tool = Tool()

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        agent = agents.Agent(name="a", instructions="be brief", tools=[tool.function])
        assert await played(session, agent, responses, streams=streams) == "done"
        return session.trajectories()

    (only,), engine = run(test, says("so " + CALL), says("done"))
    assert tool.keys == ["k"]
    begun = f"[system]be brief[user]hi[assistant]so {CALL}<eos>[tool]v of k[assistant]"
    assert read(only) == f"{begun}done<eos>"
    assert chosen(only) == [f"so {CALL}<eos>", "done<eos>"]
    assert only.metadata == {"turns": 2, "requests": 2, "ignored_strict": 2}
    assert len(engine.requests[1].prompt) == len(begun.replace("<eos>", "."))


@MODELS
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
def test_calls_at_once_are_one_answer(responses: bool, streams: bool) -> None:
    tool, other = Tool(), CALL.replace('"k"', '"l"')

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        agent = agents.Agent(name="a", tools=[tool.function])
        assert await played(session, agent, responses, streams=streams) == "done"
        return session.trajectories()

    (only,), _ = run(test, says(CALL + other), says("done"))
    assert sorted(tool.keys) == ["k", "l"]
    assert read(only) == f"[user]hi[assistant]{CALL}{other}<eos>[tool]v of k[tool]v of l[assistant]done<eos>"


@MODELS
@pytest.mark.parametrize(("choice", "told"), [("required", "a tool"), ("look", "the tool look")])
def test_a_call_that_is_required_is_told(responses: bool, choice: str, told: str) -> None:
    """Only until it has called: then its loop asks for no call any more."""
    tool = Tool()

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        settings = agents.ModelSettings(tool_choice=choice, parallel_tool_calls=False)
        agent = agents.Agent(name="a", tools=[tool.function], model_settings=settings)
        assert await played(session, agent, responses) == "done"
        return session.trajectories()

    (only,), _ = run(test, says(CALL), says("done"))
    assert f"Answer with a call of {told}.[assistant]{CALL}<eos>[tool]v of k[assistant]done<eos>" in read(only)
    assert read(only).count("Answer") == 1


@MODELS
def test_settings_that_change_no_distribution_are_taken(responses: bool) -> None:
    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        settings = agents.ModelSettings(
            temperature=0.2,
            top_p=0.9,
            frequency_penalty=0.0,
            presence_penalty=0.0,
            parallel_tool_calls=True,
            truncation="auto",
            max_tokens=9,
            reasoning=openai.types.Reasoning(effort="low", summary="auto"),
            verbosity="low",
            metadata={"a": "b"},
            store=False,
            prompt_cache_retention="24h",
            prompt_cache_options={"mode": "implicit"},
            context_management=[{"type": "compaction", "compact_threshold": 1000}],
            include_usage=True,
            response_include=["reasoning.encrypted_content"],
            extra_args={"prompt_cache_key": "x", "service_tier": "auto", "user": "me", "safety_identifier": "me"},
        )
        agent = agents.Agent(name="a", tools=[Tool().function], model_settings=settings)
        assert await played(session, agent, responses) == "done"
        return session.trajectories()

    (only,), engine = run(test, says("done"))
    assert (only.metadata["ignored_temperature"], only.metadata["ignored_top_p"]) == (1, 1)
    assert engine.requests[0].sampling.max_new_tokens == 9


@MODELS
def test_a_form_of_the_output_is_refused_in_words(responses: bool) -> None:
    class Form(agents.AgentOutputSchemaBase):
        is_plain_text = staticmethod(lambda: False)
        is_strict_json_schema = staticmethod(lambda: True)
        name = staticmethod(lambda: "form")
        json_schema = staticmethod(lambda: {"type": "object", "properties": {}})
        validate_json = staticmethod(json.loads)

    async def test(session: AgentSession, _: ScriptedEngine) -> None:
        agent = agents.Agent(name="a", output_type=Form())
        with pytest.raises(openai.BadRequestError, match="would sample from another distribution"):
            await played(session, agent, responses)

    run(test)


def unfinished(request: GenerateRequest) -> TokenChunk:
    return chunk(ids("ab"), FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("responses", "answer", "words"),
    [
        (True, says(CALL), "Tool look not found"),
        (False, says(CALL), "Tool look not found"),
        (True, unfinished, "max_output_tokens"),
    ],
)
def test_what_the_policy_does_wrong_is_raised_and_may_be_trained(responses: bool, answer: Any, words: str) -> None:
    """Its Responses model takes an answer that a limit cut off for one of these."""

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        agent = agents.Agent(name="a", handoffs=[agents.Agent(name="b")])
        with pytest.raises(agents.AgentsException, match=words):
            await played(session, agent, responses)
        return session.trajectories()

    histories, _ = run(test, answer)
    assert len(histories) == 1


@MODELS
def test_a_handoff_begins_a_history(responses: bool) -> None:
    """The second agent has other instructions: its history is another, in which the first answer is context."""

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        second = agents.Agent(name="b", instructions="you are b")
        first = agents.Agent(name="a", instructions="you are a", handoffs=[second])
        assert await played(session, first, responses) == "done"
        return session.trajectories()

    handoff = '<tool_call>{"name": "transfer_to_b", "arguments": {}}</tool_call>'
    histories, _ = run(test, says(handoff), says("done"))
    assert [chosen(each) for each in histories] == [[f"{handoff}<eos>"], ["done<eos>"]]
    assert read(histories[0]) == f"[system]you are a[user]hi[assistant]{handoff}<eos>"
    assert read(histories[1]).startswith("[system]you are b[user]hi[assistant]")


def test_a_conversation_that_the_gateway_holds() -> None:
    """Each request has what is new, and the id of the response before."""
    tool = Tool()

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        agent = agents.Agent(name="a", instructions="be brief", tools=[tool.function])
        assert await played(session, agent, True, auto_previous_response_id=True) == "done"
        return session.trajectories()

    (only,), _ = run(test, says(CALL), says("done"))
    assert read(only) == f"[system]be brief[user]hi[assistant]{CALL}<eos>[tool]v of k[assistant]done<eos>"


@MODELS
def test_a_conversation_that_it_holds_goes_on(responses: bool) -> None:
    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        agent, memory = agents.Agent(name="a"), agents.SQLiteSession("one")
        assert [await played(session, agent, responses, session=memory) for _ in range(2)] == ["one", "two"]
        return session.trajectories()

    (only,), _ = run(test, says("one"), says("two"))
    assert read(only) == "[user]hi[assistant]one<eos>[user]hi[assistant]two<eos>"


@pytest.mark.slow
@MODELS
def test_its_tools_are_those_of_an_mcp_server(responses: bool) -> None:
    from agents.mcp import MCPServerStdio

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        async with MCPServerStdio(params={"command": sys.executable, "args": [str(SERVER)]}) as server:
            agent = agents.Agent(name="a", mcp_servers=[server])
            assert await played(session, agent, responses) == "done"
        return session.trajectories()

    (only,), _ = run(test, says(CALL), says("done"))
    assert read(only) == f"[user]hi[assistant]{CALL}<eos>[tool]v of k[assistant]done<eos>"
