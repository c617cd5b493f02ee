"""An agent of the user's as a workflow: whatever speaks the OpenAI API plays the episode."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import HeadraceError
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.text.messages import Tool
from headrace.experience.text.tokens import Content
from headrace.rollout.policy import Policy
from headrace.rollout.sessions import Session, Sessions
from headrace.rollout.trajectory import Trajectory
from headrace.runtime.event_loop import on_own_thread


@dataclass(frozen=True, slots=True)
class AgentEpisode:
    """What an agent is called with."""

    row: dict[str, Any]
    """Of the dataset."""
    prompt: Content
    """The row's prompt: text, or chat messages."""
    tools: Sequence[Tool] | None
    """JSON schemas of the tools that the row names, if it does: the agent gives them with its requests."""
    base_url: str
    """Of the OpenAI API, as `http://127.0.0.1:40001/v1`. It answers for this episode alone, while that lasts."""
    api_key: str
    model: str
    """The policy's name in requests."""
    name: str
    """Group and number of the episode, the same in every run of the seed."""


Agent = Callable[[AgentEpisode], Any]
"""Plays an episode, plain or async. What it returns is the episode's reward; None: the run's reward functions judge."""


class AgentWorkflow:
    """Calls the agent with a session of its own."""

    def __init__(self, agent: Agent, sessions: Sessions | None = None) -> None:
        """A plain function is called on a thread of its own. Without `sessions` nothing can be played."""
        self._agent = agent
        self._sessions = sessions

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
            )
            returned = await self._played(episode, session)
        trajectories = session.trajectories()
        if returned is not None:
            trajectories[-1].reward = returned  # what is no number fails the sample, as any workflow's
        return trajectories

    async def _played(self, episode: AgentEpisode, session: Session) -> Any:
        """What the agent returns. Raises what it raises, or what broke the session."""
        task = asyncio.ensure_future(_called(self._agent, episode))
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


class AgentLeft(HeadraceError):
    """The agent would have ended more than its episode."""


async def _called(agent: Agent, episode: AgentEpisode) -> Any:
    try:
        return await _result(agent, episode)
    except SystemExit as error:
        raise AgentLeft(f"the agent called sys.exit({error.code!r})") from error


async def _result(agent: Agent, episode: AgentEpisode) -> Any:
    if inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(getattr(agent, "__call__", None)):  # noqa: B004
        return await agent(episode)
    returned = await on_own_thread(agent, episode)
    return await returned if inspect.isawaitable(returned) else returned
