"""Joins workflows that are agents with the gateway that they speak to."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from headrace.config.agent import OutsideAgent
from headrace.config.train import TrainConfig
from headrace.experience.text.chat_template import ChatTemplate
from headrace.rollout.agent import AgentWorkflow
from headrace.rollout.workflow import Workflow, outside_player
from headrace.runtime.protocol import Services

_ON_LOOPBACK = ("127.0.0.1", 0)


@asynccontextmanager
async def with_gateway(
    workflow: Workflow,
    config: TrainConfig,
    template: ChatTemplate,
    services: Services,
    worker: int | None = None,
) -> AsyncGenerator[Workflow, None]:
    """`workflow`; an agent with a gateway of its own, until this is left. `template`: of the policy. `worker`: the rank
    of the rollout worker that this is, if it is one: others give the tasks of agents outside out. Raises ConfigError if
    it cannot listen, or the renderer that is wanted cannot be had."""
    if not isinstance(workflow, AgentWorkflow):
        yield workflow
        return
    from headrace.gateway.agents.agent_gateway import AgentGateway  # aiohttp's server, for those who need it
    from headrace.gateway.agents.model_renderer import ModelRenderer
    from headrace.gateway.agents.task_routes import TaskRoutes

    outside = outside_player(workflow)
    tasks = None if outside is None or worker is not None else TaskRoutes(outside, services.clock)
    at = _ON_LOOPBACK if outside is None else listens_at(outside.config, worker)
    renderer = ModelRenderer.of(config, template)
    gateway = AgentGateway(config.gateway, services, tasks, renderer, at)
    await gateway.start()
    try:
        yield workflow.through(gateway)
    finally:
        await gateway.close()


@asynccontextmanager
async def giving_tasks_out(workflow: Workflow, services: Services) -> AsyncGenerator[None, None]:
    """While it is entered, agents outside are given the tasks that rollout workers play, if the workflow is theirs.
    Raises ConfigError if nobody can be listened to."""
    outside = outside_player(workflow)
    if outside is None:
        yield
        return
    from headrace.gateway.agents.task_listener import TaskListener
    from headrace.gateway.agents.task_routes import TaskRoutes

    listener = TaskListener(TaskRoutes(outside, services.clock), listens_at(outside.config))
    await listener.start()
    try:
        yield
    finally:
        await listener.close()


def listens_at(agent: OutsideAgent, worker: int | None = None) -> tuple[str, int]:
    """Host and port of whoever gives tasks out, or of this rollout worker: theirs are the next ones; 0: any that is
    free."""
    return agent.host, agent.port and agent.port + (0 if worker is None else 1 + worker)
