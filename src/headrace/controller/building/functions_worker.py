"""The worker that computes the user's functions and advantages of tokens, built."""

from __future__ import annotations

from headrace.config import ConfigError
from headrace.controller.building.processors import often_of
from headrace.controller.planning.plan import Plan
from headrace.roles.columns import advantages
from headrace.roles.columns.functions_worker import InWorker
from headrace.roles.context import RoleContext
from headrace.roles.workers.functions import FunctionsSpec, FunctionsWorker
from headrace.runtime.protocol import Runtime
from headrace.runtime.workers import Placement, Silence, WorkerError, Workers

_THREADS = 1
"""As a lane of this process has, so that the same sums come out."""
_START_S = 600.0
"""A user's module may import much."""


async def start_functions(
    plan: Plan, runtime: Runtime, kind: type[FunctionsWorker] = FunctionsWorker, *, processes: bool = True
) -> Workers[FunctionsWorker]:
    """On a lane of this process, or in a process of its own. `processes`: whether there are any. Raises ConfigError,
    WorkerLost, WaitTimeout."""
    config = plan.config
    process = config.functions_process and processes
    where = Placement(
        process=process,
        threads=_THREADS if process else None,
        deadline_s=config.runtime.stall_timeout_s,
        start_s=_START_S,
        silence=Silence(config.runtime.stall_timeout_s, "runtime.stall_timeout_s"),
    )
    try:
        return await runtime.start(kind, [FunctionsSpec(config, _advantages_read(plan))], where)
    except WorkerError as error:
        raise (ConfigError(error.text) if error.type == ConfigError.__name__ else error) from error


def asked_functions(plan: Plan, context: RoleContext, workers: Workers[FunctionsWorker]) -> InWorker:
    """As roles ask them. `workers`: what `start_functions` gave."""
    computed = {stage.name: stage.reads for stage in plan.config.algorithm.stages}
    if plan.config.algorithm.looks_at_tokens:
        computed[advantages.NAME] = _advantages_read(plan)
    return InWorker(workers, context, computed, name=advantages.NAME, often=often_of(plan.config))


def _advantages_read(plan: Plan) -> tuple[str, ...]:
    recipe = plan.recipe
    return recipe.stage(advantages.NAME).reads if recipe.has(advantages.NAME) else ()
