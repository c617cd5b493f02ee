"""The configs of `headrace rm` and `headrace dpo`: training on pairs of a chosen and a rejected response."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from headrace.config.base import Section
from headrace.config.cluster import RanksClusterConfig
from headrace.config.data import OneSource, Sources, TooLong, TrainingData, check_unweighted
from headrace.config.layout import LayoutConfig
from headrace.config.model import ModelConfig
from headrace.config.sft import (
    OfflineCheckpointConfig,
    OfflineEvaluationConfig,
    SFTRuntimeConfig,
    Trackers,
    check_ranks_places,
    differ,
)
from headrace.config.template import TemplateConfig
from headrace.config.trainer import LRScheduleConfig, OptimizerConfig, SupervisedOptimizerConfig
from headrace.config.values.name_or_function import one_of


class PairDataConfig(TrainingData):
    train: Annotated[Sources, AfterValidator(check_unweighted)]
    """A file, folder or Hub name with one pair a row; or a mapping with its options, as `headrace train` has
    it; or a list of these, which are put together. See docs/data.md."""
    eval: OneSource | None = None
    """Held-out pairs, with the same columns: a file, folder or Hub name, or a mapping with its options."""
    prompt_column: str = "prompt"
    chosen_column: str = "chosen"
    rejected_column: str = "rejected"
    tools_column: str | None = "tools"
    """Column with JSON schemas of the tools of a prompt, for the chat template: a list, or its JSON text. Rows may lack
    it."""
    template: TemplateConfig = TemplateConfig()
    max_tokens: int | None = Field(default=None, ge=2)
    """Longest sample in tokens, response included; the model's context unless given."""
    too_long: TooLong = "fail"
    """What is done with pairs of which one is longer: `fail`, `drop` them, or `truncate_left`: keep its last tokens."""
    shuffle: bool = True

    @model_validator(mode="after")
    def _columns_differ(self) -> PairDataConfig:
        columns = {name: getattr(self, name) for name in ("prompt_column", "chosen_column", "rejected_column")}
        return differ(self, columns)


class PairTrainerConfig(Section):
    steps: int | None = Field(default=None, ge=1)
    """Optimiser steps; one pass over the data unless given."""
    pairs_per_batch: int = Field(default=64, ge=1)
    optimizer: OptimizerConfig = OptimizerConfig()
    lr_schedule: LRScheduleConfig = LRScheduleConfig()
    max_grad_norm: float = Field(default=1.0, gt=0)
    max_tokens_per_microbatch: int = Field(default=4096, ge=1)
    """Token budget of one forward and backward pass of a rank; a longer pair is a micro-batch of its own."""
    layout: LayoutConfig = LayoutConfig()
    """Ranks that train the model together, each a process of its own, as of `headrace train`. See docs/layouts.md."""


class RMTrainerConfig(PairTrainerConfig):
    optimizer: SupervisedOptimizerConfig = SupervisedOptimizerConfig()


class RMConfig(Section):
    model: ModelConfig
    data: PairDataConfig
    trainer: RMTrainerConfig = RMTrainerConfig()
    loss: Annotated[str, one_of("reward_ranking")] = "reward_ranking"
    """`reward_ranking` (Bradley-Terry), or a function of yours: `path.py:function`."""
    margin: float = Field(default=0.0, ge=0)
    """By how much the chosen response's score is to be above the other's."""
    checkpoint: OfflineCheckpointConfig = OfflineCheckpointConfig()
    evaluation: OfflineEvaluationConfig = OfflineEvaluationConfig()
    runtime: SFTRuntimeConfig = SFTRuntimeConfig()
    cluster: RanksClusterConfig = RanksClusterConfig()
    track: Trackers = ()
    """Where metrics go beside the record in `run.db`, as of `headrace train`. See docs/tracking.md."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the order of the data."""

    @model_validator(mode="after")
    def _ranks_have_places(self) -> RMConfig:
        check_ranks_places(self.runtime, self.cluster)
        return self


class DPOConfig(Section):
    model: ModelConfig
    """The policy; as it is at the start it is the reference, too."""
    data: PairDataConfig
    trainer: PairTrainerConfig = PairTrainerConfig()
    loss: Annotated[str, one_of("dpo", "ipo")] = "dpo"
    """`dpo`, `ipo`, or a function of yours: `path.py:function`."""
    beta: float = Field(default=0.1, gt=0)
    """How near the policy is kept to the reference (of IPO: tau)."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """`dpo`: share of pairs that are taken to be labelled the wrong way round."""
    per_length: bool = False
    """Average over a response's tokens instead of summing."""
    checkpoint: OfflineCheckpointConfig = OfflineCheckpointConfig()
    evaluation: OfflineEvaluationConfig = OfflineEvaluationConfig()
    runtime: SFTRuntimeConfig = SFTRuntimeConfig()
    cluster: RanksClusterConfig = RanksClusterConfig()
    track: Trackers = ()
    """Where metrics go beside the record in `run.db`, as of `headrace train`. See docs/tracking.md."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the order of the data."""

    @model_validator(mode="after")
    def _ranks_have_places(self) -> DPOConfig:
        check_ranks_places(self.runtime, self.cluster)
        return self

    @model_validator(mode="after")
    def _smooths_dpo(self) -> DPOConfig:
        if self.loss == "ipo" and self.label_smoothing:
            raise ValueError(f"label_smoothing is {self.label_smoothing:g} but loss is ipo, which has none; use 0")
        return self
