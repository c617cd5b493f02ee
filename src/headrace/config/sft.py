"""The config of `headrace sft`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, field_validator, model_validator

from headrace.config.base import Section
from headrace.config.cluster import RanksClusterConfig, check_local_devices
from headrace.config.data import OneSource, Sources, TooLong, TrainingData, check_unweighted
from headrace.config.layout import LayoutConfig
from headrace.config.model import ModelConfig
from headrace.config.runtime import PassStuckConfig
from headrace.config.template import TemplateConfig
from headrace.config.track import TrackerConfig, each_once
from headrace.config.trainer import LRScheduleConfig, SupervisedOptimizerConfig
from headrace.config.values.hosts import one_host
from headrace.config.values.name_or_function import one_of

S = TypeVar("S", bound=Section)
Trackers = Annotated[tuple[TrackerConfig, ...], AfterValidator(each_once)]


def differ(section: S, columns: Mapping[str, str]) -> S:
    """`section`, if no two keys of `columns` name one column. Raises ValueError."""
    keys: dict[str, str] = {}
    for key, column in columns.items():
        if keys.setdefault(column, key) != key:
            raise ValueError(f"{keys[column]} and {key} are both {column!r}; name two columns")
    return section


class SFTDataConfig(TrainingData):
    train: Annotated[Sources, AfterValidator(check_unweighted)]
    """A file, folder or Hub name with one demonstration a row; or a mapping with its options, as `headrace train` has
    it; or a list of these, which are put together. See docs/data.md."""
    eval: OneSource | None = None
    """Held-out demonstrations, with the same columns: a file, folder or Hub name, or a mapping with its options."""
    prompt_column: str = "prompt"
    response_column: str = "response"
    messages_column: str | None = None
    """Column with a whole conversation, a list of chat messages, instead of a prompt and a response. What is in the
    loss: see `loss_roles` and `loss_turns`."""
    tools_column: str | None = "tools"
    """Column with JSON schemas of the tools of a conversation, for the chat template: a list, or its JSON text. Rows
    may lack it."""
    template: TemplateConfig = TemplateConfig()
    max_tokens: int | None = Field(default=None, ge=2)
    """Longest sample in tokens, response included; the model's context unless given."""
    too_long: TooLong = "fail"
    """What is done with longer samples: `fail`, `drop` them, or `truncate_left`: keep their last tokens."""
    shuffle: bool = True

    @model_validator(mode="after")
    def _columns_differ(self) -> SFTDataConfig:
        return differ(self, {"prompt_column": self.prompt_column, "response_column": self.response_column})


class SFTTrainerConfig(Section):
    steps: int | None = Field(default=None, ge=1)
    """Optimiser steps; one pass over the data unless given."""
    samples_per_batch: int = Field(default=64, ge=1)
    optimizer: SupervisedOptimizerConfig = SupervisedOptimizerConfig()
    lr_schedule: LRScheduleConfig = LRScheduleConfig()
    max_grad_norm: float = Field(default=1.0, gt=0)
    max_tokens_per_microbatch: int = Field(default=4096, ge=1)
    """Token budget of one forward and backward pass of a rank; a longer sample is a micro-batch of its own."""
    layout: LayoutConfig = LayoutConfig()
    """Ranks that train the model together, each a process of its own, as of `headrace train`. See docs/layouts.md."""


class SFTRuntimeConfig(Section):
    kind: Literal["inline", "ray"] = "inline"
    """`inline`: one rank is in this process, several are processes of this machine, or of torchrun's. `ray`: ranks are
    actors of a Ray cluster (`pip install 'headrace[cluster]'`); where, says `cluster.place`."""
    address: str | None = Field(default=None, min_length=1)
    """Of a Ray cluster to join, as `127.0.0.1:6379` or `auto`; unless given, one is started on this machine for the
    run. Its token is the environment's RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH's."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """Where ranks are on several machines: the address of the first rank's machine that the others reach, on whose
    network they meet. Nothing there is encrypted, and whoever reaches the ports can take part: let it be on a network
    of these machines alone. On one machine they meet on loopback."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of all ranks together; the machine's cores unless given, and at most eight for each. Of ranks that
    are placed, each has `cpus` of `cluster.place.trainer`."""
    stuck: PassStuckConfig = PassStuckConfig()

    @field_validator("host")
    @classmethod
    def _host_is_one(cls, given: str) -> str:
        return one_host(given)

    @model_validator(mode="after")
    def _address_is_of_ray(self) -> SFTRuntimeConfig:
        if self.kind == "inline" and self.address is not None:
            raise ValueError(f"address is {self.address!r}, and kind inline; set kind: ray")
        return self


def check_ranks_places(runtime: SFTRuntimeConfig, cluster: RanksClusterConfig) -> None:
    """Raises ValueError with the mend."""
    if cluster.place and runtime.kind == "inline":
        raise ValueError("cluster has a place of the ranks, and runtime.kind is inline; set runtime.kind: ray")
    check_local_devices(cluster, runtime.address)


class OfflineCheckpointConfig(Section):
    every: int = Field(default=200, ge=1)
    """Steps between checkpoints; one more is made when the command is told to stop. The newest is kept, until the model
    is there."""


class OfflineEvaluationConfig(Section):
    every: int | None = Field(default=None, ge=1)
    """Steps between evaluations on `data.eval`, beside those before and after training; none unless given."""
    max_rows: int | None = Field(default=None, ge=1)
    """Only the first so many held-out rows."""


class SFTConfig(Section):
    model: ModelConfig
    data: SFTDataConfig
    trainer: SFTTrainerConfig = SFTTrainerConfig()
    loss: Annotated[str, one_of("sft")] = "sft"
    """`sft` (negative log-likelihood), or a function of yours: `path.py:function`. A mean over tokens."""
    loss_roles: tuple[str, ...] = Field(default=("assistant",), min_length=1)
    """`data.messages_column`: whose words are in the loss."""
    loss_turns: Literal["all", "last", "split"] = "all"
    """`data.messages_column`: `all` turns of these roles; the `last` alone; or `split`: a sample for each, as the model
    reads the conversation when it writes that turn."""
    checkpoint: OfflineCheckpointConfig = OfflineCheckpointConfig()
    evaluation: OfflineEvaluationConfig = OfflineEvaluationConfig()
    runtime: SFTRuntimeConfig = SFTRuntimeConfig()
    cluster: RanksClusterConfig = RanksClusterConfig()
    track: Trackers = ()
    """Where metrics go beside the record in `run.db`, as of `headrace train`. See docs/tracking.md."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the order of the data."""

    @model_validator(mode="after")
    def _ranks_have_places(self) -> SFTConfig:
        check_ranks_places(self.runtime, self.cluster)
        return self
