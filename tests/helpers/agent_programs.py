"""Episodes of agents that are programs."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from agent_listener import gateway_at_work
from rollout_helpers import ScriptedEngine, policy, says

from headrace.config.agent import AgentCommand
from headrace.config.reward import SandboxConfig
from headrace.experience.prompts.dataset import Prompt
from headrace.rewards.tools import find_walls
from headrace.rollout.agent import AgentWorkflow
from headrace.rollout.agent_command import CommandAgent
from headrace.rollout.trajectory import Trajectory
from headrace.runtime.inline import SystemClock

ASKS = """
    import json, os, sys, urllib.request
    told = json.loads(sys.stdin.readline())

    def ask(words, key=None):
        body = {"model": told["model"], "messages": [{"role": "user", "content": words}]}
        headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
        url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
            return json.load(answer)["choices"][0]["message"]["content"]
"""


def inline(code: str, **more: Any) -> AgentCommand:
    return AgentCommand(command=(sys.executable, "-c", textwrap.dedent(ASKS) + textwrap.dedent(code)), **more)


def play(agent: AgentCommand, *, within_s: float = 20) -> tuple[list[Trajectory], ScriptedEngine]:
    engine = ScriptedEngine(says("one"), says("two"))
    (only,) = play_at_once(agent, 1, engine, within_s=within_s)
    return only, engine


def play_at_once(
    agent: AgentCommand,
    count: int,
    engine: ScriptedEngine,
    *,
    within_s: float = 20,
    loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> list[list[Trajectory]]:
    """Of so many episodes."""

    async def main() -> Any:
        async with AsyncExitStack() as stack:
            gateway = await stack.enter_async_context(gateway_at_work())
            workflow = AgentWorkflow(CommandAgent(agent)).through(gateway)
            prompt = Prompt("0", "hi", {"prompt": "hi", "answer": "one"})
            policies = [policy(engine, chat=True, episode=episode) for episode in range(count)]
            episodes = asyncio.gather(*(workflow.run(prompt, each) for each in policies))
            return await asyncio.wait_for(episodes, within_s)

    with asyncio.Runner(loop_factory=loop) as runner:
        return [list(each) for each in runner.run(main())]


def has_walls() -> bool:
    return asyncio.run(find_walls(SandboxConfig(), SystemClock(), own_function=True)).stand


walled = pytest.mark.skipif(not has_walls(), reason="no sandbox works here")
