"""Who computes columns of rows: models beside the policy, and functions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headrace.config.base import Section
from headrace.config.layout import LayoutConfig
from headrace.config.trainer import LRScheduleConfig, SupervisedOptimizerConfig
from headrace.config.values.name_or_function import one_of


class ReferenceConfig(Section):
    """The model that `algorithm.kl` keeps the policy near. Used only with a coefficient above 0."""

    model: str | None = None
    """A folder or Hub name; the policy as it was before training unless given."""
    placement: Literal["own", "hybrid", "process"] = "own"
    """`own`: a lane of its own. `hybrid`: in turn with the actor, as a frozen copy of its weights. `process`: a process
    of its own, on this machine."""
    refresh_every: int | None = Field(default=None, ge=1)
    """Batches after which the policy of that time becomes the reference; never unless given. With `placement: own` or
    `hybrid`, and with Ray `hybrid` alone, which it is then unless given."""
    layout: LayoutConfig = LayoutConfig()
    """Of ranks that score together, each in a process of its own, as `trainer.layout`."""
    max_tokens_per_microbatch: int = Field(default=4096, ge=1)


class FunctionsConfig(Section):
    """What computes columns and is no model: your stages, advantage, shaping and KL controller, and advantages that
    look at tokens (`gae`, `reinforce_plus_plus`, a KL in the reward). Advantages of one number a sample are computed
    where the run is."""

    placement: Literal["own", "process"] = "own"
    """`own`: a lane of its own. `process`: a process of its own, on this machine, which imports your modules anew, so
    that nothing global in them is shared with the run's process; if it dies, it comes back, and what it had computed
    is computed again."""


class ProximalConfig(Section):
    """Who computes log-probs under the weights that a batch begins with, where several steps are made on it, or
    `algorithm.kl.of` is `proximal`."""

    placement: Literal["hybrid", "own", "process"] = "hybrid"
    """`hybrid`: the actor itself, before its first step. `own`: a copy of the policy on a lane of its own, which takes
    each new version and scores rows as they enter the batch. `process`: such a copy in a process of its own, on this
    machine."""
    layout: LayoutConfig = LayoutConfig()
    """Of ranks that score together, each in a process of its own, as `trainer.layout`; each takes new versions."""
    max_tokens_per_microbatch: int = Field(default=4096, ge=1)


class TeacherConfig(Section):
    """The model that `algorithm.advantage: distillation` learns from."""

    model: str | None = None
    """A folder or Hub name, with the policy's tokenizer."""
    placement: Literal["own", "process"] = "own"
    """`own`: a lane of its own. `process`: a process of its own, on this machine."""
    layout: LayoutConfig = LayoutConfig()
    """Of ranks that score together, each in a process of its own, as `trainer.layout`."""
    max_tokens_per_microbatch: int = Field(default=4096, ge=1)


class CriticConfig(Section):
    """The value model of `algorithm.advantage: gae`."""

    model: str | None = None
    """A folder or Hub name; the policy's, with a new head, unless given."""
    optimizer: SupervisedOptimizerConfig = SupervisedOptimizerConfig()
    lr_schedule: LRScheduleConfig = LRScheduleConfig()
    max_grad_norm: float = Field(default=1.0, gt=0)
    loss: Annotated[str, one_of("value_loss")] = "value_loss"
    """`value_loss`: half the squared distance from the return. Or a function of yours: `path.py:function`."""
    clip: float | None = Field(default=0.2, gt=0)
    """A value's update counts only within this distance of the value that advantages were estimated with."""
    updates_per_batch: int = Field(default=1, ge=1)
    """Optimiser steps in each of the `algorithm.epochs_per_batch` epochs over a batch. With more than one step the
    batch is sealed first."""
    warmup_batches: int = Field(default=0, ge=0)
    """First batches in which only the critic learns."""
    placement: Literal["own", "process"] = "own"
    """`own`: a lane of its own. `process`: a process of its own, on this machine."""
    layout: LayoutConfig = LayoutConfig()
    """Of ranks that train it together, as `trainer.layout`."""
    max_tokens_per_microbatch: int = Field(default=4096, ge=1)

    @property
    def tokens_at_once(self) -> int:
        """Token budget of one pass of all ranks together."""
        return self.layout.tokens_at_once(self.max_tokens_per_microbatch)
