"""Whoever plays may change what it was given: no other episode of the group sees it, and nothing that scores does."""

from __future__ import annotations

import asyncio
import copy
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from agent_listener import CHAT, gateway_at_work
from rollout_helpers import PaperRewards, ScriptedEngine, says, settings

from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import Group, GroupKey, SampleStatus
from headrace.experience.text.conversation import Messages, conversation
from headrace.rewards.outcome import RewardOutcome
from headrace.rollout.agent import AgentWorkflow, FunctionAgent
from headrace.rollout.agent_episode import AgentEpisode
from headrace.rollout.environment import StepResult
from headrace.rollout.episode_scoring import EpisodeScoring
from headrace.rollout.episodes import EpisodeRunner
from headrace.rollout.multi_turn import MultiTurn
from headrace.rollout.policy import Policy
from headrace.rollout.rollout_function import FunctionRunner, FunctionSettings
from headrace.rollout.single_turn import SingleTurn
from headrace.rollout.trajectory import Trajectory
from headrace.weights.version import INITIAL

KEY, SAMPLES = GroupKey(0, 0, 0), 3


def prompt() -> Prompt:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    return Prompt("0", [{"role": "user", "content": "q"}], {"answer": "7", "of": {"tags": ["a"]}}, [tool])


class Changes:
    """Code that is careless with what it is given, at every depth."""

    def __init__(self) -> None:
        self.seen: list[Prompt] = []
        """As it was before."""

    def make(self, given: Any) -> None:
        content = given.prompt if isinstance(given, AgentEpisode) else given.content
        self.seen.append(copy.deepcopy(Prompt("0", content, given.row, given.tools)))
        content[0]["content"] = "another"
        content.append({"role": "user", "content": "and more"})
        given.tools[0]["function"]["name"] = "listen"
        self.make_in(given.row)

    @staticmethod
    def make_in(row: dict[str, Any]) -> None:
        row["x"] = 1
        row["of"]["tags"].append("b")


class NotedRewards(PaperRewards):
    """Keeps what it was asked about as well, as it was then."""

    def __init__(self) -> None:
        super().__init__()
        self.of: list[tuple[Any, Any]] = []
        self.read: list[Messages] = []

    async def score(
        self, response: str, row: dict[str, Any], prompt: Any, messages: Any = None, *more: Any
    ) -> RewardOutcome:
        self.of.append(copy.deepcopy((prompt, row)))
        self.read.append(copy.deepcopy(conversation(prompt, response, messages)))
        return await super().score(response, row, prompt, messages, *more)


def played(rewards: NotedRewards, workflow: Any = None, agent: Any = None) -> Group:
    async def main() -> Group:
        async with AsyncExitStack() as stack:
            its = settings(ScriptedEngine(says("7")), chat=True)
            plays = workflow
            if agent is not None:
                gateway = await stack.enter_async_context(gateway_at_work())
                plays = AgentWorkflow(FunctionAgent(agent)).through(gateway)
            runner = EpisodeRunner(
                workflow=plays,
                policy=its,
                rewards=rewards,
                clock=its.clock,
                samples_per_prompt=SAMPLES,
                episode_timeout_s=10.0,
            )
            return await runner.run_group(KEY, prompt(), INITIAL, 1)

    return asyncio.run(main())


def check(group: Group, rewards: NotedRewards) -> None:
    """Each was scored as if nobody had changed anything."""
    assert [(sample.status, sample.reward) for sample in group.samples] == [(SampleStatus.COMPLETED, 1.0)] * SAMPLES
    assert rewards.of == [(prompt().content, prompt().row)] * SAMPLES


def test_an_agent_changes_its_own_prompt_alone() -> None:
    changes, rewards = Changes(), NotedRewards()

    async def agent(episode: AgentEpisode) -> None:
        changes.make(episode)
        headers = {"Authorization": f"Bearer {episode.api_key}"}
        async with (
            aiohttp.ClientSession(headers=headers) as client,
            client.post(f"{episode.base_url}/chat/completions", json=CHAT) as response,
        ):
            assert response.status == 200

    check(played(rewards, agent=agent), rewards)
    assert changes.seen == [prompt()] * SAMPLES


def test_a_workflow_changes_its_own_prompt_alone() -> None:
    changes, rewards = Changes(), NotedRewards()

    class Mine:
        async def run(self, prompt: Prompt, policy: Policy) -> Trajectory:
            changes.make(prompt)
            trajectory = Trajectory(policy.encode([{"role": "user", "content": "q"}]))
            trajectory.add_completion(await policy.generate(trajectory.tokens))
            return trajectory

    check(played(rewards, Mine()), rewards)
    assert changes.seen == [prompt()] * SAMPLES
    assert rewards.read == [[*prompt().content, {"role": "assistant", "content": "7"}]] * SAMPLES


def test_an_environment_changes_its_own_row_alone() -> None:
    rows, rewards = [], NotedRewards()

    class Mine:
        def reset(self, row: dict[str, Any]) -> None:
            rows.append(copy.deepcopy(row))
            Changes.make_in(row)

        def step(self, action: str) -> StepResult:
            return StepResult("", done=True)

    check(played(rewards, MultiTurn(Mine, 2)), rewards)
    assert rows == [prompt().row] * SAMPLES


@pytest.mark.parametrize("evaluation", [False, True])
@pytest.mark.parametrize("scores", [False, True])
def test_a_rollout_function_changes_one_sample_s_prompt_alone(scores: bool, evaluation: bool) -> None:
    """Whether it asks for the reward itself or leaves that to the run; also where the conversation has more turns."""
    changes, rewards = Changes(), NotedRewards()

    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        groups = await buffer.get(1)
        for sample in groups[0]:
            changes.make(sample.prompt)
            assert sample.row is sample.prompt.row
            await sample.generate()
            if sample.index:
                sample.add_observation(sample.policy.encode_observation("no", chat=True))
                await sample.generate()
            if scores:
                assert await sample.score() == 1.0
        return groups

    async def main() -> Group:
        its = settings(ScriptedEngine(says("7")), chat=True)
        values: dict[str, Any] = {"name": "f", "prompts_per_batch": 2, "max_staleness": 2, "timeout_s": 5.0}
        made = FunctionSettings(**values, samples_per_prompt=SAMPLES, evaluation=evaluation)
        return await FunctionRunner(function, made, its, EpisodeScoring(its, rewards)).run_group(
            KEY, prompt(), INITIAL, 2
        )

    check(asyncio.run(main()), rewards)
    assert changes.seen == [prompt()] * SAMPLES
    assert [messages[0] for messages in rewards.read] == prompt().content * SAMPLES
    assert [len(messages) for messages in rewards.read] == [2, 4, 4]


@pytest.mark.parametrize("given", [prompt(), Prompt("p", "text", {})])
def test_a_copy_is_equal(given: Prompt) -> None:
    assert given.copied() == given


def test_the_builtin_workflow_is_as_it_was() -> None:
    rewards = NotedRewards()
    check(played(rewards, SingleTurn()), rewards)
