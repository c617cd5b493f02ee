"""What crosses between the controller and a rollout worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.config.train import TrainConfig
from headrace.engines.remote_types import ENGINE_TYPES
from headrace.experience.columns import COLUMN_TYPES
from headrace.experience.header import GroupHeader, SampleHeader, Span
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import GroupKey, SampleStatus
from headrace.experience.text.fast_tokenizer import TokenizerSpec
from headrace.rollout.relayed_tasks import LeftTask, OfferedTask
from headrace.runtime.refs import Ref
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Handle
from headrace.store import JournalOffset, Receipt
from headrace.weights.version import Version


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A language model, as those see it who ask its engines."""

    path: str
    """Its folder or Hub name: where the tokenizer is, if it has no spec."""
    tokenizer: TokenizerSpec | None
    stop_token_ids: tuple[int, ...]
    max_context: int
    """Tokens of prompt and response."""
    engines: tuple[Handle, ...]
    """In the order of the pool in the controller."""


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """From which a rollout worker builds itself."""

    config: TrainConfig
    policy: ModelSpec
    judges: Mapping[str, ModelSpec]
    """By `path`: models of judges, other than the policy."""
    longest: Mapping[str, int]
    """Prompt in tokens, by the held-out set; of training by the empty name."""
    branch: int
    last_kept: Mapping[int, int]
    """With `branch`, the run's line: see `Lineage`."""
    journal: str
    """The folder of the run's journal."""
    partials: str
    """The folder of groups that a rollout function has begun."""
    reward_log: str
    """The file that takes what reward functions print."""
    workers: int
    """Rollout workers of the run: each has its share of the processes that score."""
    min_samples: int
    """A group with fewer that did not fail is not journaled."""
    keeps_failed: bool
    """Whether samples that failed are told whole, for the record."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A group to be played."""

    key: GroupKey
    prompt: Prompt
    version: Version
    """That it starts with: no engine serves it with an older one."""
    deadline: int
    issue: int
    home: int | None
    """The engine that was chosen for it, by its place in the pool; None: the worker chooses, for each episode."""
    only: tuple[int, ...]
    """No other engine may serve it, if any are named, and these with `version` alone."""


@dataclass(frozen=True, slots=True)
class Played:
    """A group whose episodes have ended."""

    header: GroupHeader
    refs: tuple[Ref, ...]
    """To the columns of its samples; none unless it is in the journal."""
    receipt: Receipt | None
    failed: bytes | None
    """The group of those samples that failed, encoded, if somebody keeps them."""
    reward_calls: Mapping[str, int]
    """Calls to rewards that have ended since the worker last said so, by seconds."""


ROLLOUT_TYPES = ENGINE_TYPES.with_types(COLUMN_TYPES).with_types(
    WireTypes(
        {
            "assignment": Assignment,
            "group_header": GroupHeader,
            "group_key": GroupKey,
            "journal_offset": JournalOffset,
            "left_task": LeftTask,
            "model_spec": ModelSpec,
            "offered_task": OfferedTask,
            "played": Played,
            "prompt": Prompt,
            "receipt": Receipt,
            "rollout_spec": RolloutSpec,
            "sample_header": SampleHeader,
            "sample_status": SampleStatus,
            "span": Span,
            "tokenizer_spec": TokenizerSpec,
            "train_config": TrainConfig,
        }
    )
)
