"""A real listener of an episode, with an engine that follows a script behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import aiohttp
from rollout_helpers import EOS, ScriptedEngine, policy, says

from headrace.config.gateway import GatewayConfig
from headrace.gateway.agents.agent_gateway import AgentGateway
from headrace.gateway.agents.agent_session import AgentSession
from headrace.rollout.trajectory import Trajectory
from headrace.runtime.inline import InlineRuntime

E = TypeVar("E", bound=ScriptedEngine)

CHAT = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>{"name": "look", "arguments": {"key": "k"}}</tool_call>'


@asynccontextmanager
async def gateway_at_work(config: GatewayConfig | None = None) -> AsyncIterator[AgentGateway]:
    async with AsyncExitStack() as stack:
        runtime = InlineRuntime()
        stack.push_async_callback(runtime.close)
        gateway = AgentGateway(config or GatewayConfig(), runtime)
        await gateway.start()
        stack.push_async_callback(gateway.close)
        yield gateway


def run(
    test: Callable[[AgentSession, ScriptedEngine], Awaitable[Any]], *script: Any, **settings: Any
) -> tuple[Any, ScriptedEngine]:
    engine = ScriptedEngine(*(script or (says("one"), says("two"), says("three"))))
    return run_on(engine, test, GatewayConfig(tool_parser="hermes", **settings), max_context=200), engine


def run_on(
    engine: E,
    test: Callable[[AgentSession, E], Awaitable[Any]],
    config: GatewayConfig,
    *others: ScriptedEngine,
    **changes: Any,
) -> Any:
    """`others`: engines beside it. `changes`: of what the policy has in common with others."""

    async def main() -> Any:
        async with (
            gateway_at_work(config) as gateway,
            gateway.open(policy(engine, *others, **{"chat": True, **changes})) as session,
        ):
            return await asyncio.wait_for(test(session, engine), 20)

    return asyncio.run(main())


async def post(session: AgentSession, body: Any, route: str = "chat/completions", **headers: str) -> tuple[int, Any]:
    given = {"Authorization": f"Bearer {session.api_key}", **{k.replace("_", "-"): v for k, v in headers.items()}}
    async with (
        aiohttp.ClientSession(headers=given) as client,
        client.post(f"{session.base_url}/{route}", json=body) as response,
    ):
        return response.status, await response.json()


def read(trajectory: Trajectory) -> str:
    return "".join("<eos>" if token == EOS else chr(token - 3 + 32) for token in trajectory.tokens.tolist())


def chosen(trajectory: Trajectory) -> list[str]:
    """What is trained, answer by answer."""
    return [
        "".join("<eos>" if token == EOS else chr(token - 3 + 32) for token in tokens.tolist())
        for is_chosen, tokens in trajectory.turns
        if is_chosen
    ]
