"""How one episode runs, from prompt to trajectory."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from typing import Protocol

from headrace.config.agent import AgentCommand, OutsideAgent
from headrace.config.errors import ConfigError
from headrace.config.rollout import RolloutConfig
from headrace.experience.prompts.dataset import Prompt
from headrace.plugins.named import NOTHING_GIVEN, Given, load_class, load_function
from headrace.rollout.agent import AgentWorkflow, FunctionAgent, Player
from headrace.rollout.agent_command import CommandAgent
from headrace.rollout.agent_outside import OutsidePlayer
from headrace.rollout.multi_turn import MultiTurn
from headrace.rollout.policy import Policy
from headrace.rollout.proxies import past_proxies
from headrace.rollout.single_turn import SingleTurn
from headrace.rollout.trajectory import Trajectory

BUILTIN_WORKFLOWS = ("single_turn", "multi_turn", "agent")


class Workflow(Protocol):
    """One object serves all episodes, many at a time: what belongs to an episode stays in `run`."""

    async def run(self, prompt: Prompt, policy: Policy) -> Trajectory | Sequence[Trajectory]:
        """Play one episode. Several trajectories are one episode whose history was rewritten on the way.

        Whatever it raises fails this episode alone.
        """


def outside_player(workflow: Workflow) -> OutsidePlayer | None:
    """What offers the episodes, where agents outside of the run play."""
    player = workflow.player if isinstance(workflow, AgentWorkflow) else None
    return player if isinstance(player, OutsidePlayer) else None


def _agent(agent: str | AgentCommand | OutsideAgent, given: Given, episode_timeout_s: float) -> Player:
    if isinstance(agent, OutsideAgent):
        return OutsidePlayer(agent, episode_timeout_s)
    if isinstance(agent, AgentCommand):
        return CommandAgent(agent)
    os.environ.update(past_proxies(os.environ))  # before its file is imported: clients may be made there
    return FunctionAgent(load_function(agent, "rollout.agent", ("episode",), awaited=True, given=given))


def load_workflow(config: RolloutConfig, given: Given = NOTHING_GIVEN) -> Workflow:
    """The workflow that `config` names. Raises ConfigError if it cannot be had."""
    if config.workflow == "multi_turn":
        if config.environment is None:
            raise ConfigError("rollout.workflow is multi_turn, which needs rollout.environment: path.py:Class")
        methods = {"reset": ("row",), "step": ("action",)}
        environment = load_class(config.environment, "rollout.environment", methods, given)
        return MultiTurn(environment, config.max_turns, keep_special_tokens=config.keep_special_tokens)
    if config.environment is not None:
        raise ConfigError(
            f"rollout.environment is {config.environment!r}, but rollout.workflow is {config.workflow}, which has "
            "none; set rollout.workflow=multi_turn, or remove it"
        )
    if config.agent is not None:
        return AgentWorkflow(_agent(config.agent, given, config.episode_timeout_s))
    if config.workflow == "single_turn":
        return SingleTurn()
    if ":" not in config.workflow:
        raise ConfigError(
            f"rollout.workflow is {config.workflow!r}; write {', '.join(BUILTIN_WORKFLOWS)} or path.py:Class"
        )
    run = {"run": ("prompt", "policy")}
    workflow: Workflow = load_class(config.workflow, "rollout.workflow", run, given, shared=True)()
    if not inspect.iscoroutinefunction(workflow.run):
        raise ConfigError(
            f"rollout.workflow is {config.workflow!r}, whose method run is not async; write async def run"
        )
    return workflow
