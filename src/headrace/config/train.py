"""The config of `headrace train`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from headrace.config.algorithm import AlgorithmConfig
from headrace.config.base import Section
from headrace.config.data import DataConfig, RewardConfig
from headrace.config.model import EngineConfig, ModelConfig
from headrace.config.rollout import AsyncConfig, RolloutConfig
from headrace.config.trainer import TrainerConfig


class WeightsConfig(Section):
    transport: Literal["memory", "disk"] = "memory"
    """How weights reach engines: `memory` within one process, `disk` through the run's folder."""


class CheckpointConfig(Section):
    every: int = Field(default=20, ge=1)
    """Batches between checkpoints; one more is made at the end, and when the run is told to stop."""
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints that are kept."""


class EvaluationConfig(Section):
    every: int | None = Field(default=None, ge=1)
    """Batches between evaluations, beside those before and after training; none unless given."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Longest response; that of `rollout.sampling` unless given."""
    temperature: float = Field(default=0.0, ge=0)
    max_prompts: int | None = Field(default=None, ge=1)
    """Only the first so many held-out prompts."""
    timeout_s: float = Field(default=600.0, gt=0)
    """An evaluation that takes longer is given up, and the engine freed for new weights."""


class RuntimeConfig(Section):
    kind: Literal["inline"] = "inline"
    threads: int | None = Field(default=None, ge=1)
    """CPU threads for all compute lanes together; the machine's cores unless given."""
    stall_timeout_s: float = Field(default=900.0, gt=0)
    """A wait of the run that lasts longer ends it with an error that says what it waited for; never less than
    `rollout.episode_timeout_s`."""


class TrainConfig(Section):
    model: ModelConfig
    data: DataConfig
    reward: RewardConfig = RewardConfig()
    rollout: RolloutConfig = RolloutConfig()
    async_: AsyncConfig = Field(default=AsyncConfig(), alias="async")
    algorithm: AlgorithmConfig = AlgorithmConfig()
    trainer: TrainerConfig = TrainerConfig()
    engine: EngineConfig = EngineConfig()
    weights: WeightsConfig = WeightsConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the order of the data and, in training, of the sampling noise."""

    @model_validator(mode="after")
    def _parts_fit(self) -> TrainConfig:
        ahead, batch = self.async_.ahead, self.rollout.prompts_per_batch
        if ahead is not None and ahead < batch:
            raise ValueError(
                f"async.ahead is {ahead}, less than rollout.prompts_per_batch ({batch}): a batch could never fill; "
                f"raise it to {batch} or more"
            )
        episode_s, stall_s = self.rollout.episode_timeout_s, self.runtime.stall_timeout_s
        if episode_s > stall_s:
            raise ValueError(
                f"rollout.episode_timeout_s is {episode_s:g}, more than runtime.stall_timeout_s ({stall_s:g}): the run "
                f"would be taken for stalled while it waits for a long episode; raise runtime.stall_timeout_s to "
                f"{episode_s:g} or more, or lower rollout.episode_timeout_s"
            )
        if self.algorithm.advantage != "mean_only" and self.rollout.samples_per_prompt == 1:
            raise ValueError(
                f"algorithm.advantage is {self.algorithm.advantage} but rollout.samples_per_prompt is 1: one sample "
                "has no group to compare with, so every advantage would be 0; set samples_per_prompt to 2 or more"
            )
        return self
