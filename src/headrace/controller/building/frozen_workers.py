"""The models that write log-probs, as workers."""

from __future__ import annotations

from headrace.config import TrainConfig
from headrace.config.layout import LayoutConfig
from headrace.controller.building.model_workers import scoring_ranks
from headrace.controller.planning.plan import Plan
from headrace.controller.planning.role_devices import role_device
from headrace.roles.columns.frozen import InRanks
from headrace.roles.workers.frozen import FrozenSpec, FrozenWorker
from headrace.runtime.protocol import Runtime
from headrace.training.layouts.ranks import layout_of


async def frozen_ranks(
    kind: type[FrozenWorker], weights: str, max_tokens: int, layout: LayoutConfig, plan: Plan, runtime: Runtime
) -> InRanks:
    """Of the model at `weights`. `max_tokens`: of a micro-batch of one of its ranks. Raises as `started`."""
    config: TrainConfig = plan.config
    budget = max_tokens * layout.budgets
    spec = FrozenSpec(
        weights,
        config.model.dtype,
        str(role_device(config, kind.kind)),
        config.rollout.sampling.temperature,
        layout=layout_of(layout),
        max_tokens=max_tokens,
    )
    ranks, returns = await scoring_ranks(kind, spec, runtime, config, spec.layout)
    return InRanks(ranks, kind.kind, runtime.refs, budget, returns)
