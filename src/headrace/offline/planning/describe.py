"""An offline trainer's plan in words: its data, its ranks and where they are, and the memory."""

from __future__ import annotations

from headrace.config import DPOConfig, RMConfig, SFTConfig
from headrace.config.kinds import command_of
from headrace.controller.building.threads import available_threads
from headrace.controller.planning.memory_lines import memory_lines, use_lines
from headrace.controller.planning.out_of_memory import what_to_lower
from headrace.controller.planning.placement_view import drawn_of
from headrace.controller.planning.rank_words import network_notes, ranks_in_words, ray_in_words, stages_in_words
from headrace.offline.planning.plan import OfflinePlan
from headrace.offline.ranks.placement import asked_of_ranks, ranks_of, threads_of_rank
from headrace.offline.units import rows_of, size_of, trained_units

_TRAINS = {SFTConfig: "a model on demonstrations", RMConfig: "a reward model on pairs", DPOConfig: "a policy on pairs"}


def describe_offline_plan(plan: OfflinePlan) -> str:
    """Several lines, for a terminal. A cluster that is to be joined is joined for a moment. Raises as `drawn_of`."""
    return "\n\n".join("\n".join(part) for part in (_run(plan), _roles(plan), _memory(plan)))


def _run(plan: OfflinePlan) -> list[str]:
    config, inputs, memory = plan.config, plan.inputs, plan.memory
    context = inputs.source.max_context
    return [
        f"command   headrace {command_of(config)}: trains {_TRAINS[type(config)]}",
        f"model     {config.model.path}: {memory.parameters / 1e6:,.2f} M parameters, trainer {config.model.dtype}"
        + ("" if context is None else f", context {context} tokens"),
        f"data      {_data(plan)}; held out: {len(inputs.held_out)}",
        f"steps     {_steps(plan)}",
        f"loss      {_loss(plan)}",
        *_cluster(plan),
    ]


def _data(plan: OfflinePlan) -> str:
    sizes, rows = [*map(size_of, plan.inputs.units)], rows_of(plan.inputs.units)
    in_loss = sum(int(row.mask.sum()) for row in rows)
    return (
        f"{plan.config.data.described}: {len(sizes):,} {_units(plan)} of {min(sizes):,} to {max(sizes):,} tokens, "
        f"{sum(sizes):,} in all, {in_loss:,} of them in the loss"
    )


def _units(plan: OfflinePlan) -> str:
    return "samples" if isinstance(plan.config, SFTConfig) else "pairs"


def _steps(plan: OfflinePlan) -> str:
    units, per_batch = len(plan.inputs.units), plan.inputs.per_batch
    passes = trained_units(plan.steps, per_batch, units) / units
    return (
        f"{plan.steps:,} of {per_batch:,} {_units(plan)}, {passes:,.4g} {'pass' if passes == 1 else 'passes'} over the "
        f"data; a checkpoint every {plan.config.checkpoint.every:,}"
    )


def _loss(plan: OfflinePlan) -> str:
    compared = ", against the log-probs under the weights at the start" * isinstance(plan.config, DPOConfig)
    return f"{plan.config.loss}{compared}"


def _cluster(plan: OfflinePlan) -> list[str]:
    config = plan.config
    if config.runtime.kind != "ray":
        return []
    ranks = ranks_of(config)
    return [
        f"ray       {ray_in_words(config.runtime.address)}; all ranks are actors",
        *drawn_of(asked_of_ranks(config, lambda: None), config.runtime, config.cluster, ranks),
        *network_notes(config.runtime.host, len(ranks)),
    ]


def _roles(plan: OfflinePlan) -> list[str]:
    config = plan.config
    layout, kind = config.trainer.layout, config.runtime.kind
    if layout.ranks == 1 and not layout.stage and kind == "inline":
        where, threads = "this process", available_threads(config.runtime.threads)
    else:
        where = ranks_in_words(layout, stages_in_words(layout, plan.memory.model), on_device=plan.memory.on_device)
        threads = threads_of_rank(config, layout.ranks)
    return [f"roles     runtime {kind}", f"  {'trainer':<16} {where}: {threads} CPU thread(s)"]


def _memory(plan: OfflinePlan) -> list[str]:
    memory = plan.memory
    mend = f"{what_to_lower(plan.config, on_device=memory.on_device)}, or take a smaller model"
    lines = memory_lines(memory.total, memory.free, memory.place, on_device=memory.on_device, mend=mend)
    return lines + use_lines(memory.uses, memory.on_host)
