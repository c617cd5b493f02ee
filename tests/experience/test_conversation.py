"""Which text a reward and an environment see: the last turn, the whole conversation, special tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from rollout_helpers import EOS, PaperRewards, ScriptedEngine, ids, policy, says, settings

from headrace.config.reward import RewardConfig
from headrace.config.rollout import RolloutConfig
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import Group, GroupKey
from headrace.rewards.reward_pool import RewardPool
from headrace.rollout.environment import StepResult
from headrace.rollout.episodes import EpisodeRunner
from headrace.rollout.multi_turn import MultiTurn
from headrace.rollout.policy import Policy
from headrace.rollout.single_turn import SingleTurn
from headrace.rollout.trajectory import Trajectory
from headrace.rollout.workflow import Workflow, load_workflow
from headrace.runtime.inline import SystemClock
from headrace.weights.version import INITIAL

PROMPT = Prompt("p", "3+4=", {"answer": "7"})
CHAT = Prompt("p", [{"role": "system", "content": "add"}, {"role": "user", "content": "3+4"}], {"answer": "7"})
MINE = """
def turns(response, row, messages):
    assert messages[-1]["content"] == response, (messages, response)
    return len(messages)

def all_turns(responses, row, messages):
    return [100 * len(each) + len(each[-1]["content"]) for each in messages]
"""


class Guess:
    """No rewards of its own; done at the word `stop`."""

    def __init__(self) -> None:
        self.actions: list[str] = []

    def reset(self, row: dict[str, Any]) -> Any:
        return None

    def step(self, action: str) -> StepResult:
        self.actions.append(action)
        return StepResult(observation="no", done=action.startswith("stop"))


class ThinkThenAnswer:
    """A workflow that says nothing of its conversation."""

    async def run(self, prompt: Prompt, policy: Policy) -> Trajectory:
        trajectory = Trajectory(policy.encode(prompt.content))
        trajectory.add_completion(await policy.generate(trajectory.tokens))
        trajectory.add_observation(policy.encode_observation("So: ", chat=False))
        trajectory.add_completion(await policy.generate(trajectory.tokens))
        return trajectory


class Told(ThinkThenAnswer):
    def __init__(self, messages: Any) -> None:
        self._messages = messages

    async def run(self, prompt: Prompt, policy: Policy) -> Trajectory:
        trajectory = await super().run(prompt, policy)
        trajectory.messages = self._messages
        return trajectory


def episodes(
    workflow: Workflow, rewards: Any, *script: Any, samples: int = 1, chat: bool = False, group_rewards: Any = None
) -> EpisodeRunner:
    return EpisodeRunner(
        workflow=workflow,
        policy=settings(ScriptedEngine(*script), chat=chat),
        rewards=rewards,
        group_rewards=group_rewards,
        clock=SystemClock(),
        samples_per_prompt=samples,
        episode_timeout_s=20,
    )


def conversations(workflow: Workflow, *script: Any, prompt: Prompt = PROMPT, chat: bool = False) -> list[Any]:
    """What the reward of one episode is given as messages, or the failure of its sample."""
    rewards = PaperRewards()
    runner = episodes(workflow, rewards, *script, chat=chat)
    group = asyncio.run(runner.run_group(GroupKey(0, 0, 0), prompt, INITIAL, 2))
    return rewards.conversations or [sample.failure for sample in group.samples]


def said(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def test_of_one_turn_the_prompt_and_the_response_are_all() -> None:
    assert conversations(SingleTurn(), says("7")) == [None]


def test_a_multi_turn_reward_sees_the_whole_conversation() -> None:
    expected = said(("user", "3+4="), ("assistant", "a"), ("user", "no"), ("assistant", "stop"))
    assert conversations(MultiTurn(Guess, 4), says("a"), says("stop")) == [expected]
    expected = said(("system", "add"), ("user", "3+4"), ("assistant", "a"), ("user", "no"), ("assistant", "stop"))
    assert conversations(MultiTurn(Guess, 4), says("a"), says("stop"), prompt=CHAT, chat=True) == [expected]
    assert CHAT.content == said(("system", "add"), ("user", "3+4")), "the prompt itself stays as it is"


def test_what_the_environment_says_in_place_of_the_prompt_is_what_is_seen() -> None:
    class Own(Guess):
        def reset(self, row: dict[str, Any]) -> Any:
            return "go"

    assert conversations(MultiTurn(Own, 4), says("stop")) == [said(("user", "go"), ("assistant", "stop"))]


def test_of_other_workflows_the_conversation_is_what_they_added() -> None:
    expected = said(("user", "3+4="), ("assistant", "hm"), ("user", "So: "), ("assistant", "7"))
    assert conversations(ThinkThenAnswer(), says("hm"), says("7")) == [expected]
    assert conversations(Told(said(("user", "hi"))), says("hm"), says("7")) == [said(("user", "hi"))]


@pytest.mark.parametrize("messages", ["hi", [{"role": "user"}], [{"role": "user", "content": 3}], [3]])
def test_messages_of_another_form_fail_the_sample(messages: Any) -> None:
    (failure,) = conversations(Told(messages), says("hm"), says("7"))
    assert failure.startswith("workflow: TypeError: the trajectory's messages are no list of {'role': text, 'content'")


def scored(config: RewardConfig, workflow: Workflow, *script: Any) -> list[float | None]:
    """Rewards of the two episodes of a group, in order."""

    async def play() -> Group:
        pool = RewardPool(config, clock=SystemClock())
        await pool.start()
        try:
            runner = episodes(workflow, pool, *script, samples=2, group_rewards=pool if config.group else None)
            return await runner.run_group(GroupKey(0, 0, 0), PROMPT, INITIAL, 2)
        finally:
            await pool.close()

    samples = asyncio.run(play()).samples
    assert [sample.failure for sample in samples] == [None, None]
    return [sample.reward for sample in samples]


@pytest.mark.parametrize("trusted", [True, False])
def test_functions_of_the_users_own_are_given_messages(tmp_path: Path, trusted: bool) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    shared: dict[str, Any] = {"trusted": trusted, "timeout_s": 20.0}
    one = RewardConfig(function=f"{tmp_path}/mine.py:turns", **shared)
    together = RewardConfig(group=f"{tmp_path}/mine.py:all_turns", **shared)

    assert scored(one, SingleTurn(), says("7"), says("8")) == [2.0, 2.0]
    assert scored(one, MultiTurn(Guess, 4), says("a"), says("a"), says("stop")) == [4.0, 4.0]
    assert scored(together, SingleTurn(), says("7"), says("77")) == [201.0, 202.0]


def test_a_turn_shows_special_tokens_only_where_they_are_kept(tmp_path: Path) -> None:
    made: list[Guess] = []

    def environment() -> Guess:
        made.append(Guess())
        return made[-1]

    def turns(keep: bool) -> tuple[list[str], Any]:
        workflow = MultiTurn(environment, 4, keep_special_tokens=keep)
        trajectory = asyncio.run(workflow.run(PROMPT, policy(ScriptedEngine(says("a"), says("stop")))))
        assert trajectory.last_completion.tolist() == [*ids("stop"), EOS]
        return made[-1].actions, trajectory.messages

    assert turns(False) == (
        ["a", "stop"],
        said(("user", "3+4="), ("assistant", "a"), ("user", "no"), ("assistant", "stop")),
    )
    assert turns(True) == (
        ["a<eos>", "stop<eos>"],
        said(("user", "3+4="), ("assistant", "a<eos>"), ("user", "no"), ("assistant", "stop<eos>")),
    )


def test_the_key_reaches_the_workflow(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text("class E:\n    def reset(self, row): ...\n    def step(self, action): ...\n")
    config = RolloutConfig(workflow="multi_turn", environment=f"{tmp_path}/env.py:E", keep_special_tokens=True)
    seen: list[str] = []

    async def first_turn() -> None:
        workflow = load_workflow(config)
        with pytest.raises(TypeError, match="step returned NoneType"):
            await workflow.run(PROMPT, Listening(policy(ScriptedEngine(says("a"))), seen))

    asyncio.run(first_turn())
    assert seen == ["a<eos>"]


class Listening:
    """A policy that keeps what it decoded."""

    def __init__(self, inner: Policy, seen: list[str]) -> None:
        self._inner, self._seen = inner, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def decoded(self, *arguments: Any, **keywords: Any) -> str:
        self._seen.append(await self._inner.decoded(*arguments, **keywords))
        return self._seen[-1]
