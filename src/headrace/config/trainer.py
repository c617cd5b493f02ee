"""The optimiser and the length of training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headrace.config.base import Section
from headrace.config.layout import LayoutConfig

ENTROPY_VOCABULARY = 2**16
"""Largest vocabulary whose entropy is recorded unless the config says."""
Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    lr: float = Field(default=1e-6, gt=0)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    offload: bool = False
    """On a GPU: masters and moments (12 bytes a parameter) are in the host's memory, and its processors compute the
    steps."""


class SupervisedOptimizerConfig(OptimizerConfig):
    """Of what learns from targets that it is given: a class of its own, so that its `lr` stays where others of its keys
    are set."""

    lr: float = Field(default=1e-5, gt=0)


class LRScheduleConfig(Section):
    """Counted in optimiser steps, of which a batch may have several."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    """Over all optimiser steps of the run."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimiser steps over which the learning rate rises linearly from 0."""
    min_ratio: float = Field(default=0.0, ge=0, le=1)
    """`linear`, `cosine`: the last learning rate, as a share of `lr`."""


class TrainerConfig(Section):
    batches: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Batches to train: weight versions to make. Unless given, as many as `epochs` holds."""
    epochs: int = Field(default=1, ge=1, le=1_000_000_000)
    """Passes over the dataset; `batches` given, the dataset repeats until they are done."""
    optimizer: OptimizerConfig = OptimizerConfig()
    lr_schedule: LRScheduleConfig = LRScheduleConfig()
    max_grad_norm: float = Field(default=1.0, gt=0)
    backend: Literal["hugging_face", "megatron"] = "hugging_face"
    """Whose layers it computes with: transformers' or Megatron-Core's (extra `megatron`; Llama, Qwen2 and Qwen3; needs
    `placement: process`). See docs/megatron.md."""
    layout: LayoutConfig = LayoutConfig()
    """Of ranks that train it together, each in a process of its own (`placement: process`), on this machine."""
    placement: Literal["own", "process"] = "own"
    """`own`: a lane of the run's own process. `process`: a process of its own, on this machine; its weights reach
    others by `weights.transport`, `shm` unless given. Your own loss functions run there."""
    record_entropy: bool | None = None
    """Whether the record has the policy's entropy, over the whole vocabulary; unless given, where that has 65,536
    tokens or fewer, since it takes one more look at all logits: 2 % of a step's processor time at 32,000 tokens,
    3.4 % at 151,936."""
    max_tokens_per_microbatch: int = Field(default=4096, ge=1)
    """Token budget of one forward and backward pass; a longer sample is a micro-batch of its own."""

    @property
    def tokens_at_once(self) -> int:
        """Token budget of one pass of all ranks together."""
        return self.max_tokens_per_microbatch * self.layout.dp * self.layout.budgets
