"""Joins workflows that are agents with the gateway that they speak to."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from headrace.config.train import TrainConfig
from headrace.experience.text.chat_template import ChatTemplate
from headrace.rollout.agent import AgentWorkflow
from headrace.rollout.workflow import Workflow, outside_player
from headrace.runtime.protocol import Services


@asynccontextmanager
async def with_gateway(
    workflow: Workflow, config: TrainConfig, template: ChatTemplate, services: Services
) -> AsyncGenerator[Workflow, None]:
    """`workflow`; an agent with a gateway of its own, until this is left. `template`: of the policy. Raises ConfigError
    if it cannot listen, or the renderer that is wanted cannot be had."""
    if not isinstance(workflow, AgentWorkflow):
        yield workflow
        return
    from headrace.gateway.agents.agent_gateway import AgentGateway  # aiohttp's server, for those who need it
    from headrace.gateway.agents.model_renderer import ModelRenderer
    from headrace.gateway.agents.task_routes import TaskRoutes

    outside = outside_player(workflow)
    tasks = None if outside is None else TaskRoutes(outside, services.clock)
    renderer = ModelRenderer.of(config, template)
    gateway = AgentGateway(config.gateway, services, tasks, renderer)
    await gateway.start()
    try:
        yield workflow.through(gateway)
    finally:
        await gateway.close()
