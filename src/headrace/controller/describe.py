"""A plan in words: the dataflow, the roles and where they run, and the memory."""

from __future__ import annotations

from headrace.algorithms.recipes import check_dataflow
from headrace.controller.memory import GIB, MIB
from headrace.controller.plan import Plan
from headrace.controller.threads import available_threads
from headrace.rollout.rewards.pool import worker_count

_LANE_OF = {"rollout": "engine", "actor": "trainer"}
_OWN_LANE = {name: name for name in ("reward", "reference", "proximal", "teacher")} | {
    "critic.value": "critic",
    "critic.update": "critic",
}


def describe_plan(plan: Plan) -> str:
    """Several lines, for a terminal."""
    return "\n".join([*_run(plan), "", *_dataflow(plan), "", *_roles(plan), "", *_memory(plan)])


def _run(plan: Plan) -> list[str]:
    config = plan.config
    rollout, asynchrony = config.rollout, config.async_
    return [
        f"model     {config.model.path}: {plan.memory.parameters / 1e6:,.2f} M parameters, "
        f"trainer {config.model.dtype}, engine {config.engine.dtype or config.model.dtype}, "
        f"context {plan.max_context} tokens",
        f"data      {config.data.train}: {len(plan.prompts)} prompts; held out: {len(plan.eval_prompts)}",
        f"batches   {plan.total_batches} of {rollout.prompts_per_batch} prompts x {rollout.samples_per_prompt} "
        f"samples, {config.algorithm.updates_per_batch} optimiser step(s) each"
        + (f"; {rollout.surplus} prompt(s) more are started" if rollout.surplus else ""),
        f"schedule  {asynchrony.mode}: staleness at most {asynchrony.staleness_bound}, on deadline "
        f"{config.deadline_rule}, swaps {asynchrony.swap}",
    ]


def _dataflow(plan: Plan) -> list[str]:
    stages = check_dataflow(plan.recipe.stages)
    lines = [f"dataflow  recipe {plan.recipe.name}"]
    for stage in stages:
        reads = ", ".join(stage.reads) or "prompts"
        writes = ", ".join(stage.writes) or f"version k + 1 (loss: {plan.recipe.loss[stage.name]})"
        lines.append(f"  {stage.name:<11} each {stage.unit:<6} {reads} -> {writes}")
    lines.append(f"  streaming: {_streaming(plan)}")
    return lines


def _streaming(plan: Plan) -> str:
    if plan.recipe.stops_streaming:
        return f"no: {', '.join(plan.recipe.stops_streaming)} wait for the whole batch"
    if plan.config.algorithm.updates_per_batch > 1:
        return "no: with several optimiser steps the batch is sealed first"
    if not plan.config.async_.streaming:
        return f"no: mode {plan.config.async_.mode} trains whole batches"
    return "yes: the trainer begins a batch with its first group"


def _roles(plan: Plan) -> list[str]:
    threads = available_threads(plan.config.runtime.threads)
    names = [stage.name for stage in plan.recipe.stages if stage.name != "schedule"] + ["weight follower"]
    if plan.eval_prompts:
        names.append("evaluator")
    lines = [f"roles     runtime {plan.config.runtime.kind}, weights by {plan.config.weights.transport}"]
    for name in names:
        lane = _LANE_OF.get(name)
        if name == "reference" and plan.config.reference.placement == "hybrid":
            place = "compute lane 'trainer', in turn with the actor"
        elif name in _OWN_LANE:
            place = f"compute lane {_OWN_LANE[name]!r}: 1 CPU thread"
        elif any(name == stage.name for stage in plan.config.algorithm.stages):
            place = "compute lane 'stages'"
        elif lane:
            place = f"compute lane {lane!r}: {threads} CPU thread(s), shared while the other computes"
        else:
            place = "event loop"
        lines.append(f"  {name:<16} {place}")
    reward = plan.config.reward
    apart = reward.group or any(term.function not in ("remote", "judge") for term in reward.all_terms)
    if reward.description:
        place = f"{worker_count(reward)} child process(es)" if apart else "event loop"
        lines.append(f"  {'rewards':<16} {place}: {reward.description}")
    for judge in reward.judges:
        place = "the policy's engine" if judge.model is None else "compute lane 'judge': 1 CPU thread, " + judge.model
        lines.append(f"  {'judge':<16} {place}")
    return lines


def _memory(plan: Plan) -> list[str]:
    memory = plan.memory
    lines = [f"memory    {_size(memory.total)} and activations; {_size(memory.free)} free on {memory.place}"]
    if memory.total > memory.free:
        lines.append(
            f"  WARNING: that is {_size(memory.total - memory.free)} more than is free: free memory, lower "
            "engine.max_concurrent_sequences or engine.kv_cache_gib, or take a smaller model"
        )
    lines += [f"  {use:<44} {_size(size):>12}" for use, size in memory.uses.items()]
    return lines


def _size(count: int) -> str:
    return f"{count / GIB:,.2f} GiB" if count >= GIB else f"{count / MIB:,.2f} MiB"
