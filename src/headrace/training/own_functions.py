"""Finds the user's own functions in the place of named pieces of an algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.algorithms import pieces
from headrace.algorithms.pieces import Pieces, guarded
from headrace.config import TrainConfig
from headrace.config.values.name_or_function import is_own
from headrace.plugins.named import load_function


def load_piece(
    key: str,
    spec: str | None,
    arguments: tuple[str, ...],
    wrong: Callable[..., str | None],
    keywords: tuple[str, ...] = (),
) -> Callable[..., Any] | None:
    """What `spec`, the value of config key `key`, names, if it is a place and no name of ours; see `guarded`.

    Raises ConfigError for one that cannot be found, or called with `arguments` and `keywords`.
    """
    if spec is None or not is_own(spec):
        return None
    return guarded(f"{key} ({spec})", load_function(spec, key, arguments, keywords=keywords), wrong)


def load_pieces(config: TrainConfig) -> Pieces:
    """Those of a training run. Raises ConfigError."""
    algorithm = config.algorithm
    tokens = ("mask", "sample_index")
    return Pieces(
        loss=load_piece(
            "algorithm.loss",
            algorithm.loss,
            ("logprobs", "proximal", "advantages", *tokens),
            pieces.not_a_loss,
            algorithm.loss_reads,
        ),
        aggregation=load_piece("algorithm.aggregation", algorithm.aggregation, ("per_token", *tokens), pieces.not_sums),
        behavior=load_piece(
            "algorithm.behavior.mode", algorithm.behavior.mode, ("proximal", "behavior", *tokens), pieces.not_weights
        ),
        kl=load_piece("algorithm.kl.estimator", algorithm.kl.estimator, ("logprobs", "reference"), pieces.not_alike),
        kl_controller=load_piece(
            "algorithm.kl.controller",
            algorithm.kl.controller,
            ("coefficient", "kl", "samples"),
            pieces.not_a_coefficient,
        ),
        proximal=load_piece(
            "algorithm.proximal",
            algorithm.proximal,
            ("current", "behavior", "versions", "batch", "progress"),
            pieces.not_alike,
        ),
        advantage=load_piece("algorithm.advantage", algorithm.advantage, ("data",), pieces.not_an_advantage),
        shaping=load_piece(
            "algorithm.shaping.function",
            algorithm.shaping.function,
            ("rewards", "lengths", "group_index"),
            pieces.not_alike,
        ),
        value_loss=load_piece(
            "critic.loss", config.critic.loss, ("values", "old_values", "returns", "mask"), pieces.not_a_loss
        ),
    )


def load_stage_functions(config: TrainConfig) -> tuple[Callable[..., Any], ...]:
    """Those of the user's own stages, in their order. Raises ConfigError."""
    return tuple(
        load_function(stage.function, f"algorithm.stages: {stage.name}: function", (), keywords=stage.reads)
        for stage in config.algorithm.stages
    )
