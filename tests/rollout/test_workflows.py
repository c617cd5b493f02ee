from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from rollout_helpers import EOS, ScriptedEngine, ids, policy, says

from headrace.config import ConfigError
from headrace.config.rollout import RolloutConfig
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import GroupKey, Sample, SampleStatus
from headrace.rollout.environment import StepResult
from headrace.rollout.multi_turn import MultiTurn
from headrace.rollout.single_turn import SingleTurn
from headrace.rollout.trajectory import Trajectory
from headrace.rollout.workflow import load_workflow

PROMPT = Prompt("p", "3+4=", {"answer": "7", "start": "go"})


def sample(trajectory: Trajectory) -> Sample:
    return trajectory.to_sample(GroupKey(0, 0, 0), 0, 0, reward=trajectory.reward)


def test_single_turn_is_prompt_and_response() -> None:
    row = sample(asyncio.run(SingleTurn().run(PROMPT, policy(ScriptedEngine(says("7"))))))
    assert row.tokens.tolist() == [*ids("3+4=7"), EOS]
    assert row.loss_mask.tolist() == [False] * 4 + [True] * 2


class Guess:
    """Counts its steps; done at the word `stop`."""

    def __init__(self) -> None:
        self.actions: list[str] = []

    def reset(self, row: dict[str, Any]) -> Any:
        return None

    def step(self, action: str) -> Any:
        self.actions.append(action)
        return StepResult(observation="no;", reward=0.5, done=action == "stop")


class AsyncGuess(Guess):
    async def reset(self, row: dict[str, Any]) -> str:
        return str(row["start"])

    async def step(self, action: str) -> StepResult:
        await asyncio.sleep(0)
        return StepResult(observation="no;", done=action == "stop")


def play(environment: Any, *script: Any, max_turns: int = 5, chat: bool = False, **changes: Any) -> Trajectory:
    engine = ScriptedEngine(*script)
    workflow = MultiTurn(environment, max_turns)
    return asyncio.run(workflow.run(PROMPT, policy(engine, chat=chat, **changes)))


def test_turns_follow_each_other_until_the_environment_is_done() -> None:
    trajectory = play(Guess, says("a"), says("stop"))
    row = sample(trajectory)
    assert row.tokens.tolist() == [*ids("3+4="), *ids("a"), EOS, *ids("no;"), *ids("stop"), EOS]
    assert row.response_tokens == 2 + 5
    assert (row.status, row.reward, row.metadata) == (SampleStatus.COMPLETED, 1.0, {"turns": 2})


def test_an_async_environment_without_reward_leaves_it_to_the_reward_function() -> None:
    trajectory = play(AsyncGuess, says("stop"))
    assert trajectory.tokens.tolist() == [*ids("go"), *ids("stop"), EOS]
    assert trajectory.reward is None


def test_an_observation_has_the_role_that_the_config_says() -> None:
    prompt = Prompt("p", [{"role": "user", "content": "q"}], {})
    engine = ScriptedEngine(says("a"), says("stop"))
    workflow = MultiTurn(Guess, 3)
    trajectory = asyncio.run(workflow.run(prompt, policy(engine, chat=True, observation_role="tool")))
    first, after = ids("[user]q[assistant]"), ids("[tool]no;[assistant]")
    assert trajectory.tokens.tolist() == [*first, *ids("a"), EOS, *after, *ids("stop"), EOS]
    assert trajectory.messages is not None
    assert [message["role"] for message in trajectory.messages] == ["user", "assistant", "tool", "assistant"]


def test_a_turn_that_a_stop_text_ends_is_closed_before_the_observation() -> None:
    """The policy did not write the closing token, so it comes with what the environment says."""
    prompt = Prompt("p", [{"role": "user", "content": "q"}], {})
    engine = ScriptedEngine(says("a;b"), says("stop"))
    trajectory = asyncio.run(MultiTurn(Guess, 3).run(prompt, policy(engine, chat=True, stop=(";",))))
    row = sample(trajectory)
    first, after = ids("[user]q[assistant]"), ids("[user]no;[assistant]")
    assert row.tokens.tolist() == [*first, *ids("a;"), EOS, *after, *ids("stop"), EOS]
    assert row.loss_mask[len(first) :].tolist() == [True] * 2 + [False] * (1 + len(after)) + [True] * 5


def test_the_limit_on_turns_truncates_after_a_last_observation() -> None:
    """The state at which another turn would have begun."""
    row = sample(play(Guess, says("a"), max_turns=2))
    assert row.status is SampleStatus.TRUNCATED
    assert row.tokens.tolist() == [*ids("3+4=a"), EOS, *ids("no;a"), EOS, *ids("no;")]
    assert row.response_tokens == 4


def test_a_full_context_truncates() -> None:
    row = sample(play(Guess, says("a"), max_context=9))
    assert row.status is SampleStatus.TRUNCATED
    assert row.tokens.tolist() == [*ids("3+4=a"), EOS, *ids("no;")]


def test_an_observation_is_kept_as_far_as_the_context_reaches() -> None:
    trajectory = play(Guess, says("a"), max_context=8)
    row = trajectory.to_sample(GroupKey(0, 0, 0), 0, 0, max_context=8)
    assert row.tokens.tolist() == [*ids("3+4=a"), EOS, *ids("no")]
    assert {len(row.loss_mask), len(row.logprobs), len(row.versions), len(row.branches)} == {8}


class Chat(Guess):
    def reset(self, row: dict[str, Any]) -> Any:
        return [{"role": "user", "content": "q"}]


def test_in_a_chat_observations_are_messages_of_the_user() -> None:
    trajectory = play(Chat, says("a"), says("stop"), chat=True)
    text = [*ids("[user]q[assistant]a"), EOS, *ids("[user]no;[assistant]stop"), EOS]
    assert trajectory.tokens.tolist() == text


class Wrong(Guess):
    def step(self, action: str) -> Any:
        return ("no", 1.0)


def test_a_step_of_the_wrong_type_says_what_to_return() -> None:
    with pytest.raises(TypeError, match="step returned tuple; return a StepResult"):
        play(Wrong, says("a"))


MINE = """
from headrace.rollout.trajectory import Trajectory

class Twice:
    async def run(self, prompt, policy):
        trajectory = Trajectory(policy.encode(prompt.content))
        for _ in range(2):
            trajectory.add_completion(await policy.generate(trajectory.tokens))
        return trajectory

class NotAsync:
    def run(self, prompt, policy): ...

class Environment:
    def reset(self, row): ...
    def step(self, action): ...
"""


def test_workflows_by_name_and_by_path(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    mine = f"{tmp_path}/mine.py"
    assert isinstance(load_workflow(RolloutConfig()), SingleTurn)
    config = RolloutConfig(workflow="multi_turn", environment=f"{mine}:Environment")
    assert isinstance(load_workflow(config), MultiTurn)
    twice = load_workflow(RolloutConfig(workflow=f"{mine}:Twice"))
    trajectory = asyncio.run(twice.run(PROMPT, policy(ScriptedEngine(says("7")))))
    assert isinstance(trajectory, Trajectory)
    assert trajectory.tokens.tolist() == [*ids("3+4=7"), EOS, *ids("7"), EOS]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workflow": "multi_turns"}, "rollout.workflow is 'multi_turns'; write single_turn, multi_turn, agent or"),
        ({"workflow": "multi_turn"}, "needs rollout.environment"),
        ({"environment": "mine.py:Environment"}, "rollout.workflow is single_turn, which has none"),
        ({"workflow": "{mine}:NotAsync"}, "whose method run is not async; write async def run"),
        ({"workflow": "{mine}:Environment"}, "has no method run"),
        ({"workflow": "multi_turn", "environment": "{mine}:Twice"}, r"has no method reset; write reset\(self, row\)"),
    ],
)
def test_a_workflow_that_cannot_be_had_is_refused(tmp_path: Path, settings: dict[str, str], words: str) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    config = RolloutConfig(**{key: value.format(mine=f"{tmp_path}/mine.py") for key, value in settings.items()})
    with pytest.raises(ConfigError, match=words):
        load_workflow(config)
