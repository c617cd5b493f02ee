"""Joins workflows that are agents with the gateway that they speak to."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from headrace.config.gateway import GatewayConfig
from headrace.rollout.agent import AgentWorkflow
from headrace.rollout.workflow import Workflow, outside_player
from headrace.runtime.protocol import Services


@asynccontextmanager
async def with_gateway(workflow: Workflow, config: GatewayConfig, services: Services) -> AsyncGenerator[Workflow, None]:
    """`workflow`; an agent with a gateway of its own, until this is left. Raises ConfigError if it cannot listen."""
    if not isinstance(workflow, AgentWorkflow):
        yield workflow
        return
    from headrace.gateway.agents.agent_gateway import AgentGateway  # aiohttp's server, for those who need it
    from headrace.gateway.agents.task_routes import TaskRoutes

    outside = outside_player(workflow)
    gateway = AgentGateway(config, services, None if outside is None else TaskRoutes(outside, services.clock))
    await gateway.start()
    try:
        yield workflow.through(gateway)
    finally:
        await gateway.close()
