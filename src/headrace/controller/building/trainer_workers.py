"""The models in training as workers: on lanes of this process, or in processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.config import TrainConfig
from headrace.config.roles import CriticConfig
from headrace.config.trainer import TrainerConfig
from headrace.controller.building.model_workers import started
from headrace.controller.planning.plan import Plan
from headrace.controller.planning.role_devices import role_device
from headrace.roles.workers.trainer import CriticWorker, TrainerSpec, TrainerWorker
from headrace.runtime.at_start import anew_if_lost
from headrace.runtime.protocol import Runtime
from headrace.training.group import TrainerGroup
from headrace.training.layouts.ranks import layout_of
from headrace.training.rank_workers import RankWorkers
from headrace.weights.transport import IN_MEMORY, Transport


async def policy_group(
    plan: Plan, runtime: Runtime, folder: Path, in_memory: Callable[[str], Path] | None
) -> TrainerGroup:
    """The actor's. `folder` of the run; `in_memory` makes one that the run's processes share, of the name that it is
    given. Raises as `started`."""
    config = plan.config
    transport: Transport = plan.transport if plan.needs_engine else "memory"
    trained = max(plan.total_batches - plan.warm_up_batches, 1)
    needs_aside = config.reference.refresh_every is not None and "trainer" in config.trainer_processes
    spec = TrainerSpec(
        config,
        plan.weights,
        str(role_device(config, TrainerWorker.kind)),
        trained * config.algorithm.steps_per_batch,
        plan.records_entropy,
        transport,
        str(
            in_memory("weights") if transport in IN_MEMORY and in_memory is not None else folder.absolute() / "weights"
        ),
        aside=str(in_memory("reference")) if needs_aside and in_memory is not None else None,
    )
    return await _group(TrainerWorker, spec, runtime, config, config.trainer)


async def value_group(plan: Plan, runtime: Runtime, weights: str, folder: Path) -> TrainerGroup:
    """The critic's, from the model at `weights`. As `policy_group`."""
    config = plan.config
    spec = TrainerSpec(
        config,
        weights,
        str(role_device(config, CriticWorker.kind)),
        plan.total_batches * config.algorithm.epochs_per_batch * config.critic.updates_per_batch,
        records_entropy=False,
        transport="memory",
        folder=str(folder),
    )
    return await _group(CriticWorker, spec, runtime, config, config.critic)


async def _group(
    kind: type[TrainerWorker] | type[CriticWorker],
    spec: TrainerSpec,
    runtime: Runtime,
    config: TrainConfig,
    own: TrainerConfig | CriticConfig,
) -> TrainerGroup:
    """`own`: the section of the model that is trained."""
    layout = layout_of(own.layout)
    workers = await started(kind, spec, runtime, config, layout.size)
    ranks = RankWorkers(workers, runtime.clock, config.runtime.stall_timeout_s, layout, host=config.weights.host)

    async def together(losses: int) -> TrainerGroup:
        await (ranks.restart() if losses else ranks.come_together())
        budget = own.max_tokens_per_microbatch * own.layout.budgets
        return await TrainerGroup.of(kind.kind, ranks, budget, runtime.refs)

    return await anew_if_lost(together, runtime.clock)
