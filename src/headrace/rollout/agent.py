"""An agent of the user's as a workflow: whatever speaks the OpenAI API plays the episode."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headrace.experience.prompts.dataset import Prompt
from headrace.rollout.agent_episode import AgentEpisode
from headrace.rollout.policy import Policy
from headrace.rollout.sessions import Session, Sessions
from headrace.rollout.trajectory import Trajectory
from headrace.rollout.user_code import called
from headrace.runtime.event_loop import on_own_thread
from headrace.runtime.protocol import Clock

Agent = Callable[[AgentEpisode], Any]
"""Plays an episode, plain or async. What it returns is the episode's reward; None: the run's reward functions judge."""


class Player(Protocol):
    """An agent, whatever it is."""

    async def play(self, episode: AgentEpisode, session: Session, clock: Clock) -> Any:
        """What it returns: the reward, or None."""


class FunctionAgent:
    """A function of the user's. A plain one is called on a thread of its own."""

    def __init__(self, function: Agent) -> None:
        self._function = function

    async def play(self, episode: AgentEpisode, session: Session, clock: Clock) -> Any:
        """See `Player.play`. Raises what the function raises."""
        return await called(self._called, episode)

    async def _called(self, episode: AgentEpisode) -> Any:
        call = getattr(self._function, "__call__", None)  # noqa: B004
        if inspect.iscoroutinefunction(self._function) or inspect.iscoroutinefunction(call):
            return await self._function(episode)
        returned = await on_own_thread(self._function, episode)
        return await returned if inspect.isawaitable(returned) else returned


class AgentWorkflow:
    """Calls the agent with a session of its own."""

    def __init__(self, agent: Player, sessions: Sessions | None = None) -> None:
        """Without `sessions` nothing can be played."""
        self._agent = agent
        self._sessions = sessions

    @property
    def player(self) -> Player:
        """The agent."""
        return self._agent

    def through(self, sessions: Sessions) -> AgentWorkflow:
        """The same, played through `sessions`."""
        return AgentWorkflow(self._agent, sessions)

    async def run(self, prompt: Prompt, policy: Policy) -> Sequence[Trajectory]:
        """See `Workflow.run`."""
        if self._sessions is None:
            raise RuntimeError("an agent is played through a gateway, and none was opened")
        async with self._sessions.open(policy) as session:
            episode = AgentEpisode(
                row=prompt.row,
                prompt=prompt.content,
                tools=prompt.tools,
                base_url=session.base_url,
                api_key=session.api_key,
                model=session.model,
                name=policy.name,
                evaluation=not policy.is_trained,
            )
            returned = await self._played(episode, session, policy.settings.clock)
        trajectories = session.trajectories()
        if returned is not None:
            trajectories[-1].reward = returned  # what is no number fails the sample, as any workflow's
        return trajectories

    async def _played(self, episode: AgentEpisode, session: Session, clock: Clock) -> Any:
        """What the agent returns. Raises what it raises, or what broke the session."""
        task = asyncio.ensure_future(self._agent.play(episode, session, clock))
        try:
            await asyncio.wait([task, session.broken], return_when=asyncio.FIRST_COMPLETED)
            if session.broken.done():
                session.broken.result()
            return task.result()
        finally:
            session.close()  # first: an agent that does not end when it is cancelled gets no further token
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            elif not task.cancelled():
                task.exception()
