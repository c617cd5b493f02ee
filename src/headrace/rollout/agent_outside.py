"""Agents that run by themselves as a player of episodes: each is a task that one of them takes."""

from __future__ import annotations

import os
from typing import Any

from headrace.config.agent import OutsideAgent
from headrace.config.errors import ConfigError
from headrace.rollout.agent_episode import AgentEpisode
from headrace.rollout.outside_tasks import OutsideTask, OutsideTasks
from headrace.rollout.sessions import Session
from headrace.runtime.protocol import Clock, WaitTimeout


class OutsidePlayer:
    """Offers each episode, and waits for its end."""

    def __init__(self, config: OutsideAgent, episode_timeout_s: float) -> None:
        """Raises ConfigError if the token is not to be had."""
        self.config = config
        self.token: str | None = None
        """That agents send to be given tasks, if one is asked for."""
        self.tasks = OutsideTasks()
        self._episode_timeout_s = episode_timeout_s
        if config.token_env is not None:
            self.token = os.environ.get(config.token_env)
            if not self.token:
                raise ConfigError(
                    f"rollout.agent.token_env names {config.token_env}, which is not set; export it, or leave it out"
                )

    async def play(self, episode: AgentEpisode, session: Session, clock: Clock) -> float | None:
        """The last reward that the agent told. Raises TaskFailed if it says that it failed; of an evaluation,
        WaitTimeout if no agent is at work at all: nothing else would end that."""
        task = OutsideTask(episode.api_key, episode.base_url, self._told(episode), session.standing)
        self.tasks.offer(task)
        try:
            while episode.evaluation and not task.ended.done():
                await self._change(task, clock)
            await task.ended
        finally:
            self.tasks.leave(task)
        return task.reward

    async def _change(self, task: OutsideTask, clock: Clock) -> None:
        """Raises WaitTimeout."""
        try:
            await self.tasks.changed.wait(clock, self._episode_timeout_s, "an agent to ask for a task")
        except WaitTimeout:
            if task.is_waiting and self.tasks.is_unattended:
                raise

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
            "deadline_s": self._episode_timeout_s,
        }
