"""How many bytes of host memory the experience table may hold, and how many a group takes at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

from headrace.algorithms.kept_sets import most_bytes
from headrace.config import TrainConfig

if TYPE_CHECKING:
    from headrace.controller.planning.plan import Plan

_GIB = 2**30
_SHARE_OF_HOST = 0.5
_SAMPLE_BYTES = 17
"""Of a token: id, log-prob, version and branch take 4 bytes each, the mask 1."""
_NUMBER_BYTES = 4
"""Of a token in a column that a stage writes, or of its own temperature: float32. A column that has a number for the
whole sample counts as well."""
_NO_SET_BYTES = 4
"""Of a token that was not sampled, beside others that have a kept set: the size of its own, 0."""
_OF_NO_TOKENS = ("rollout", "filter", "schedule")
"""Stages whose columns are those of the samples, or a value for the whole group."""


def table_bytes(config: TrainConfig) -> int:
    """`async.table_gib` in bytes, or what it is unless given: a share of all the host's memory, and not of what is free
    now, so that a run and its resumption have the same."""
    if config.async_.table_gib is not None:
        return int(config.async_.table_gib * _GIB)
    return int(_SHARE_OF_HOST * psutil.virtual_memory().total)


def table_bound(plan: Plan) -> int:
    """Bytes that the table may hold: `table_bytes`, or less where its columns lie in memory that processes share."""
    bound = table_bytes(plan.config)
    return bound if plan.column_room is None else min(bound, plan.column_room)


def column_bytes(plan: Plan) -> int:
    """Of a token, in all columns that stages write beside those that its sample came with."""
    return _NUMBER_BYTES * sum(len(stage.writes) for stage in plan.recipe.stages if stage.name not in _OF_NO_TOKENS)


def largest_group(plan: Plan, *, kept_sets: bool = True) -> int:
    """Bytes of a group in the table whose episodes give one sample each, as long and with kept sets as large as they
    can be (without, if not `kept_sets`), with all columns that stages write. (A workflow that gives several samples an
    episode may take more.)"""
    config = plan.config
    of_token = _SAMPLE_BYTES + (_NUMBER_BYTES if config.clients_sample else 0) + column_bytes(plan) + plan.routed_bytes
    sample = plan.max_context * of_token
    if config.truncates and kept_sets:
        sampled = most_sampled(config, plan.max_context)
        sample += _NO_SET_BYTES * (plan.max_context - sampled)
        sample += most_bytes(plan.vocab_size, config.most_kept) * sampled
    return config.rollout.samples_per_prompt * sample


def most_sampled(config: TrainConfig, max_context: int) -> int:
    """Tokens of a sample that the policy chooses, at most."""
    rollout = config.rollout
    if rollout.function is not None or rollout.workflow not in ("single_turn", "multi_turn"):
        return max_context
    turns = rollout.max_turns if rollout.workflow == "multi_turn" else 1
    return min(max_context, turns * rollout.sampling.max_new_tokens)
