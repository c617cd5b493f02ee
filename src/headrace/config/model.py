"""The policy model and the device that it runs on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from headrace.config.base import Section

Dtype = Literal["float32", "bfloat16"]


class ModelConfig(Section):
    path: str
    """A folder in Hugging Face format, or the name of a model on the Hub. The weights are safetensors of 16 bits or
    more, and are just those that config.json describes."""
    dtype: Dtype = "float32"
    """Compute dtype of the trainer. Master weights and optimiser state are always float32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    device: str = "auto"
    """`auto` (CUDA where there is one, else CPU), `cpu`, `cuda` or `cuda:N`."""


class EngineConfig(Section):
    kind: Literal["embedded"] = "embedded"
    dtype: Dtype | None = None
    """Dtype of weights and KV cache; the model's dtype unless given."""
    max_concurrent_sequences: int = Field(default=64, ge=1, le=4096)
    """Sequences decoded together: slots of the KV cache."""
    max_context: int | None = Field(default=None, ge=2)
    """Longest prompt + response in tokens; the model's own limit unless given."""
    kv_cache_gib: float | None = Field(default=None, gt=0)
    """Memory that the KV cache may take; unless given, half of what is free at the start, or in training on a CUDA
    device what all else leaves."""
    prefill_tokens_per_step: int = Field(default=1024, ge=1)
    """Tokens prefilled between two decode steps, so that a long prompt does not hold up the others."""


class PolicyEngineConfig(EngineConfig):
    """Of the engines that sample the policy: there may be several."""

    replicas: int = Field(default=1, ge=1, le=64)
    """Engines with weights, KV cache and `max_concurrent_sequences` of their own; each takes new weights by itself, so
    that the others go on."""
    process: bool = False
    """Each engine in a process of its own, on this machine: what ends it does not end the run, and its host work does
    not hold up the run's. Weights reach it by `weights.transport`, `shm` unless given. So is the engine of each judge
    that is a model of its own. On a CPU the threads are shared out: the engines have as many as the trainer, each its
    part; they are not lent to who is busy."""
    spread: Literal["group", "episode"] = "group"
    """Of several engines, whether one serves all episodes of a group (the prompt is computed once), or each episode
    goes to the one with least to do."""
    return_deadline_s: float = Field(default=300.0, gt=0)
    """How long an engine that died, or cannot take new weights, may hold things up. When none has served for so long,
    the run stops, with a checkpoint; when none that serves is new enough for a group, the group is issued again."""
