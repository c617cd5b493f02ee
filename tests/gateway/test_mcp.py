"""Agents whose tools are those of an MCP server, over stdio and by the official client: they are offered to the policy
as any others are, its calls go to the server, and the results come back to it."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_listener import CALL, chosen, read, run
from rollout_helpers import ScriptedEngine, says

from headrace.gateway.agents.agent_session import AgentSession

mcp = pytest.importorskip("mcp")
pytestmark = pytest.mark.slow

SERVER = Path(__file__).parents[1] / "helpers" / "mcp_tools.py"
NO_KEY = CALL.replace('"k"', '"none"')


@asynccontextmanager
async def served() -> AsyncIterator[Any]:
    """A session with the server, in a process of its own."""
    parameters = mcp.StdioServerParameters(command=sys.executable, args=[str(SERVER)])
    async with mcp.stdio_client(parameters) as (reads, writes), mcp.ClientSession(reads, writes) as server:
        await server.initialize()
        yield server


@pytest.mark.parametrize(
    ("call", "result"),
    [(CALL, "v of k"), (NO_KEY, "Error executing tool look: there is no such key")],
    ids=["returns", "raises"],
)
def test_openais_client(call: str, result: str) -> None:
    """What a tool raises is told to the policy as what it returns is."""
    openai = pytest.importorskip("openai")

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        async with (
            served() as server,
            openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client,
        ):
            listed = (await server.list_tools()).tools
            functions = [
                {"name": each.name, "description": each.description, "parameters": each.input_schema} for each in listed
            ]
            tools = [{"type": "function", "function": function} for function in functions]
            while True:
                answer = await client.chat.completions.create(model=session.model, messages=messages, tools=tools)
                message = answer.choices[0].message
                messages.append(message)
                if not message.tool_calls:
                    return session.trajectories()
                for asked in message.tool_calls:
                    returned = await server.call_tool(asked.function.name, json.loads(asked.function.arguments))
                    said = "".join(part.text for part in returned.content)
                    messages.append({"role": "tool", "tool_call_id": asked.id, "content": said})

    (only,), _ = run(test, says(call), says("done"))
    assert read(only) == f"[user]hi[assistant]{call}<eos>[tool]{result}[assistant]done<eos>"
    assert chosen(only) == [f"{call}<eos>", "done<eos>"]


def test_anthropics_tool_runner() -> None:
    anthropic = pytest.importorskip("anthropic")
    tools_of = pytest.importorskip("anthropic.lib.tools.mcp")

    async def test(session: AgentSession, _: ScriptedEngine) -> Any:
        root = session.base_url.removesuffix("/v1")
        async with served() as server, anthropic.AsyncAnthropic(base_url=root, api_key=session.api_key) as client:
            runner = client.beta.messages.tool_runner(
                model=session.model,
                max_tokens=16,
                messages=[{"role": "user", "content": "hi"}],
                tools=[tools_of.async_mcp_tool(each, server) for each in (await server.list_tools()).tools],
            )
            assert (await runner.until_done()).content[0].text == "done"
        return session.trajectories()

    (only,), _ = run(test, says(CALL), says("done"))
    assert read(only) == f"[user]hi[assistant]{CALL}<eos>[tool]v of k[assistant]done<eos>"
