"""One sample: arrays of one length, the group it belongs to, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.kept_sets import KeptSets

EVALUATION_EPOCH = 2**31 - 1
"""Of the answers to held-out prompts. Their noise must not be training noise: no training epoch has this number."""


class GroupKey(NamedTuple):
    """One attempt at one prompt: the unit of admission, filtering, normalisation and of the batch."""

    epoch: int
    position: int
    """Place of the prompt in this epoch's shuffled order."""
    attempt: int

    def __str__(self) -> str:
        return f"{self.epoch}/{self.position}#{self.attempt}"


class SampleStatus(StrEnum):
    COMPLETED = "completed"
    """The policy ended the sample itself (stop token), or the environment did."""
    TRUNCATED = "truncated"
    """A limit on tokens or turns ended it."""
    ABORTED = "aborted"
    """The run ended it on purpose; never trained."""
    FAILED = "failed"
    """The workflow, an engine or the reward failed; `failure` says why; never trained."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one episode yields: a row of the experience table.

    All arrays have length T. Where `loss_mask` is False, `logprobs` and `temperatures` are 0, and `versions` and
    `branches` are -1.
    """

    group: GroupKey
    episode: int
    """Which of the group's episodes; baselines are taken over episodes."""
    index: int
    """Which sample of the episode (0 unless the episode's history was rewritten)."""
    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    """True where the policy chose the token."""
    logprobs: NDArray[np.float32]
    """Behaviour log-prob under the distribution really sampled from (temperature, top-p and top-k included)."""
    versions: NDArray[np.int32]
    """Number of the weight version whose decode step sampled the token."""
    branches: NDArray[np.int32]
    """Branch of that version."""
    status: SampleStatus
    reward: float | None = None
    failure: str | None = None
    """Why the sample failed, as `kind: detail`; None unless `status` is FAILED."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Free, JSON-like values only."""
    kept: KeptSets | None = None
    """The kept set of each token that was sampled under top-k or top-p; None if none was."""
    terms: Mapping[str, float] = field(default_factory=dict)
    """Of a reward of several terms the value of each, by its name, before it was weighted."""
    temperatures: NDArray[np.float32] | None = None
    """Where clients choose it (`gateway.sampling`), that of each token; None where the run's holds for all."""
    experts: NDArray[np.unsignedinteger] | None = None
    """[t, layers, k] uint8 or uint16, t <= T: the experts that the engine's routers chose for each of the first t
    tokens when it first computed them, in the layers that have experts (`algorithm.router_replay`). What is behind the
    last token that the policy chose was never computed."""

    def __post_init__(self) -> None:
        length = len(self.tokens)
        for name in ("loss_mask", "logprobs", "versions", "branches"):
            if len(getattr(self, name)) != length:
                raise ValueError(
                    f"sample {self.group}/{self.episode}: {name} has length {len(getattr(self, name))}, "
                    f"tokens has {length}"
                )
        if self.kept is not None:
            self._check_kept(self.kept)
        if self.temperatures is not None:
            self._check_temperatures(self.temperatures)
        if self.experts is not None:
            self._check_experts(self.experts)

    def __len__(self) -> int:
        return len(self.tokens)

    def _check_kept(self, kept: KeptSets) -> None:
        if len(kept) != len(self):
            raise ValueError(f"sample {self.group}/{self.episode}: {len(kept)} kept sets for {len(self)} tokens")
        if ((kept.counts > 0) & ~self.loss_mask).any():
            raise ValueError(
                f"sample {self.group}/{self.episode}: a token that the policy did not choose has a kept set"
            )
        if not kept.contain(self.tokens).all():
            raise ValueError(f"sample {self.group}/{self.episode}: a token is outside its kept set")

    def _check_temperatures(self, temperatures: NDArray[np.float32]) -> None:
        if len(temperatures) != len(self) or not np.array_equal(temperatures > 0, self.loss_mask):
            raise ValueError(
                f"sample {self.group}/{self.episode}: temperatures above 0 are not those of the tokens in its mask"
            )

    def _check_experts(self, experts: NDArray[np.unsignedinteger]) -> None:
        if experts.ndim != 3 or len(experts) > len(self) or experts.dtype not in (np.uint8, np.uint16):
            raise ValueError(
                f"sample {self.group}/{self.episode}: experts are {experts.dtype} {list(experts.shape)}, of "
                f"{len(self)} tokens"
            )

    @property
    def unrouted(self) -> int:
        """Tokens that the log-prob of a token which the policy chose depends on, and whose experts are not known."""
        chosen = np.flatnonzero(self.loss_mask)
        needed = int(chosen[-1]) if len(chosen) else 0
        return max(0, needed - (0 if self.experts is None else len(self.experts)))

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays, kept sets included."""
        arrays = (self.tokens, self.loss_mask, self.logprobs, self.versions, self.branches)
        beside = (each for each in (self.kept, self.temperatures, self.experts) if each is not None)
        return sum(array.nbytes for array in (*arrays, *beside))

    @property
    def is_trainable(self) -> bool:
        return self.status in (SampleStatus.COMPLETED, SampleStatus.TRUNCATED)

    @property
    def response_tokens(self) -> int:
        """How many tokens the policy chose."""
        return int(self.loss_mask.sum())


@dataclass(frozen=True, slots=True)
class Group:
    """The finished episodes of one attempt at one prompt."""

    key: GroupKey
    prompt_id: str
    start_version: int
    """Number of the version that was loaded when the group was admitted."""
    deadline: int
    """The last batch that may train every token of this group: `start_version` + max staleness."""
    samples: tuple[Sample, ...]
    issue: int = 0
    """Which of the attempt's issues it comes from."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays of all samples, also of those that failed."""
        return sum(sample.nbytes for sample in self.samples)

    @property
    def trainable(self) -> tuple[Sample, ...]:
        return tuple(sample for sample in self.samples if sample.is_trainable)

    @property
    def trainable_episodes(self) -> int:
        """How many episodes have a trainable sample: one whose history was rewritten has several."""
        return len({sample.episode for sample in self.trainable})

    def last_of(self, episode: int) -> Sample:
        """The last trainable sample of an episode: the one that its reward is about. Raises ValueError."""
        for sample in reversed(self.trainable):
            if sample.episode == episode:
                return sample
        raise ValueError(f"group {self.key} has no trainable sample of episode {episode}")
