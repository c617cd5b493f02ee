"""What this process listens on for agents: all of their requests, or for tasks alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

from headrace.controller.planning.plan import Plan
from headrace.roles.workers.agent_sessions import giving_tasks_out, with_gateway
from headrace.runtime.protocol import Services


@asynccontextmanager
async def playing(plan: Plan, services: Services, *, here: bool) -> AsyncGenerator[Plan, None]:
    """`plan`; where episodes are played `here` and by an agent, with a gateway for them until this is left. Where
    others play them, agents outside are given tasks all the same. Raises ConfigError if it cannot listen."""
    if not here:
        async with giving_tasks_out(plan.workflow, services):
            yield plan
        return
    async with with_gateway(plan.workflow, plan.config, plan.template, services) as workflow:
        yield plan if workflow is plan.workflow else replace(plan, workflow=workflow)
