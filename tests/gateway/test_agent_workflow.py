"""An agent as a workflow: what it returns, raises, and does to itself, as an episode's runner sees it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from agent_listener import CHAT, gateway_at_work
from rollout_helpers import PaperRewards, ScriptedEngine, chunk, dead, ids, says, settings

from headrace.engines.protocol import FinishReason
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.rollout.agent import AgentWorkflow, FunctionAgent
from headrace.rollout.agent_episode import AgentEpisode
from headrace.rollout.episodes import EpisodeRunner
from headrace.weights.version import INITIAL

PROMPT = Prompt("0", "hi", {"prompt": "hi", "answer": "one"})


async def ask(episode: AgentEpisode, **more: Any) -> str:
    headers = {"Authorization": f"Bearer {episode.api_key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.post(f"{episode.base_url}/chat/completions", json={**CHAT, **more}) as response,
    ):
        body = await response.json()
        assert response.status == 200, body["error"]["message"]
        return str(body["choices"][0]["message"]["content"])


def played(agent: Callable[[AgentEpisode], Any], *script: Any, timeout_s: float = 10) -> tuple[Sample, ScriptedEngine]:
    engine = ScriptedEngine(*(script or (says("one"),)))

    async def main() -> Group:
        async with AsyncExitStack() as stack:
            gateway = await stack.enter_async_context(gateway_at_work())
            its = settings(engine, chat=True)
            runner = EpisodeRunner(
                workflow=AgentWorkflow(FunctionAgent(agent)).through(gateway),
                policy=its,
                rewards=PaperRewards(),
                clock=its.clock,
                samples_per_prompt=1,
                episode_timeout_s=timeout_s,
            )
            return await runner.run_group(GroupKey(0, 0, 0), PROMPT, INITIAL, 1)

    (sample,) = asyncio.run(main()).samples
    return sample, engine


@pytest.mark.parametrize(("returned", "reward"), [(None, 1.0), (0.25, 0.25), (True, 1.0), (0, 0.0)])
def test_the_reward_is_what_it_returns_or_what_the_runs_functions_say(returned: Any, reward: float) -> None:
    async def agent(episode: AgentEpisode) -> Any:
        assert (episode.row, episode.prompt, episode.tools) == (PROMPT.row, "hi", None)
        assert episode.name == "0/0#0/0"
        await ask(episode)
        return returned

    sample, _ = played(agent)
    assert (sample.status, sample.reward, sample.failure) == (SampleStatus.COMPLETED, reward, None)


def leaves(episode: AgentEpisode) -> None:
    sys.exit(3)


async def leaves_too(episode: AgentEpisode) -> None:
    sys.exit(3)


async def says_words(episode: AgentEpisode) -> str:
    return await ask(episode)


async def raises(episode: AgentEpisode) -> None:
    raise ValueError("no luck")


async def never_asks(episode: AgentEpisode) -> float:
    return 1.0


async def cancels(episode: AgentEpisode) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (leaves, "it called sys.exit(3)"),
        (leaves_too, "it called sys.exit(3)"),
        (says_words, "which is not a number"),
        (raises, "no luck"),
        (never_asks, "asked the policy for nothing"),
        (cancels, "CancelledError"),
    ],
)
def test_what_it_does_to_itself_fails_its_episode(agent: Any, words: str) -> None:
    sample, _ = played(agent)
    assert sample.status is SampleStatus.FAILED
    assert words in str(sample.failure)


def test_engines_that_fail_end_the_episode_whatever_its_agent_does() -> None:
    async def agent(episode: AgentEpisode) -> float:
        try:
            await ask(episode)
        except AssertionError:
            await asyncio.sleep(1000)
        return 1.0

    sample, _ = played(agent, dead)
    assert "the engine died" in str(sample.failure)


def test_a_request_that_the_run_aborts_aborts_the_episode() -> None:
    async def agent(episode: AgentEpisode) -> float:
        await ask(episode)
        return 1.0

    sample, _ = played(agent, lambda request: chunk(ids("o"), FinishReason.ABORT))
    assert (sample.status, sample.failure) == (SampleStatus.ABORTED, None)


def test_one_that_does_not_end_is_left_and_gets_no_further_token() -> None:
    """It runs on a thread, which nobody can end; its key is closed."""
    heard: list[str] = []

    def agent(episode: AgentEpisode) -> float:
        time.sleep(0.6)
        try:
            asyncio.run(ask(episode))
        except AssertionError as error:
            heard.append(str(error))
        except aiohttp.ClientError:
            heard.append("closed")
        return 1.0

    began = time.monotonic()
    sample, engine = played(agent, timeout_s=0.2)
    assert time.monotonic() - began < 5
    assert str(sample.failure).startswith("timeout")
    end = time.monotonic() + 10
    while not heard and time.monotonic() < end:
        time.sleep(0.02)
    assert len(heard) == 1
    assert "closed" in heard[0]
    assert not engine.requests
