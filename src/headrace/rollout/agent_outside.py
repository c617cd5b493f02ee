"""Agents that run by themselves as a player of episodes: each is a task that one of them takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.config.agent import OutsideAgent
from headrace.config.values.tokens import token_of
from headrace.rollout.agent_episode import AgentEpisode
from headrace.rollout.outside_tasks import OutsideTask, OutsideTasks, TaskBoard
from headrace.rollout.relayed_tasks import RelayedTasks
from headrace.rollout.sessions import Session
from headrace.runtime.protocol import Clock


class OutsidePlayer:
    """Offers each episode, and waits for its end."""

    def __init__(self, config: OutsideAgent, episode_timeout_s: float) -> None:
        self.config = config
        self.tasks = OutsideTasks()
        """Of the run, where its own process plays, or gives out what rollout workers play."""
        self.episode_timeout_s = episode_timeout_s
        self._board: TaskBoard = self.tasks

    def token(self) -> str | None:
        """That agents send to be given tasks, if one is asked for. Raises ConfigError if it is not to be had."""
        name = self.config.token_env
        return None if name is None else token_of("rollout.agent.token_env", name)

    def relayed(self) -> RelayedTasks:
        """From now on the run's own process gives out what is played here."""
        self._board = board = RelayedTasks()
        return board

    async def play(self, episode: AgentEpisode, session: Session, clock: Clock) -> float | None:
        """The last reward that the agent told. Raises TaskFailed if it says that it failed; of an evaluation,
        WaitTimeout if no agent is at work at all: nothing else would end that; and ValueError for what no agent can be
        told."""
        told, board = self._told(episode), self._board
        _require_json(told)
        task = OutsideTask(episode.api_key, episode.base_url, told, session.standing, evaluation=episode.evaluation)
        board.offer(task)
        try:
            await board.ended(task, clock, self.episode_timeout_s)
        finally:
            board.leave(task)
        return task.reward

    def _told(self, episode: AgentEpisode) -> dict[str, Any]:
        group, _, number = episode.name.rpartition("/")
        return {
            "group": group,
            "episode": int(number),
            "evaluation": episode.evaluation,
            "row": episode.row,
            "prompt": episode.prompt,
            "tools": episode.tools,
            "api_key": episode.api_key,
            "model": episode.model,
            "deadline_s": self.episode_timeout_s,
        }


def _require_json(told: Mapping[str, Any]) -> None:
    """Raises ValueError: nobody could ever take the task."""
    try:
        json.dumps(told, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"agents outside are told of a row as JSON, and this one has no form in it ({error}); correct the row"
        ) from error
