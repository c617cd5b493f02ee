"""Advantages and the policy loss."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from headrace.config.base import Section


class BehaviorConfig(Section):
    """Weights proximal / behaviour that correct for staleness (decoupled PPO, AReaL eq. 5)."""

    low: float = Field(default=0.0, ge=0)
    """Weights below are raised to this."""
    high: float = Field(default=5.0, gt=0)
    """Weights above are lowered to this."""

    @model_validator(mode="after")
    def _ordered(self) -> BehaviorConfig:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self


class AlgorithmConfig(Section):
    recipe: Literal["grpo"] = "grpo"
    """The dataflow: which stages run, and the loss."""
    advantage: Literal["group_normalized", "mean_only", "leave_one_out"] = "group_normalized"
    objective: Literal["decoupled", "naive"] = "decoupled"
    """`decoupled`: trust region around the proximal policy, corrected by behaviour weights. `naive`: the
    behaviour policy is taken for the proximal one."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """The ratio is clipped below 1 - clip_low where the advantage is negative."""
    clip_high: float = Field(default=0.28, ge=0)
    """The ratio is clipped above 1 + clip_high where the advantage is positive."""
    behavior: BehaviorConfig = BehaviorConfig()
    aggregation: Literal["token_mean", "sample_mean"] = "token_mean"
    updates_per_batch: int = Field(default=1, ge=1)
    """Optimiser steps a batch. With more than one the batch is sealed first, and proximal log-probs computed."""
