"""The gateway of agents that this process plays itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

from headrace.controller.planning.plan import Plan
from headrace.roles.workers.agent_sessions import with_gateway
from headrace.runtime.protocol import Services


@asynccontextmanager
async def playing(plan: Plan, services: Services, *, here: bool) -> AsyncGenerator[Plan, None]:
    """`plan`; where episodes are played `here` and by an agent, with a gateway for them until this is left. Raises
    ConfigError if it cannot listen."""
    if not here:
        yield plan
        return
    async with with_gateway(plan.workflow, plan.config, plan.template, services) as workflow:
        yield plan if workflow is plan.workflow else replace(plan, workflow=workflow)
