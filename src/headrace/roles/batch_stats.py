"""What a batch's rows say of staleness, reward and length; and which of their tokens may enter the loss."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.experience.index import Row
from headrace.experience.sample import GroupKey
from headrace.weights.version import Lineage


class StalenessError(RuntimeError):
    """A trained token would be staler than the bound: the schedule is broken. Never trained through."""


@dataclass(frozen=True, slots=True)
class StalenessRule:
    """Which tokens may enter the loss of a batch."""

    bound: int
    """max_staleness."""
    masks: bool
    """True: tokens past the bound are left out (`mask`). False: they are a fault, unless `allows_late`."""
    allows_late: bool
    masks_truncated: bool = False
    """Samples that were cut off are left out whole (`algorithm.truncated: mask`)."""

    def staleness(self, batch: int, versions: NDArray[np.int32]) -> NDArray[np.int32]:
        """Batch minus version, never below 0; [T] to [T]. Meaningless where no version is set."""
        return np.maximum(batch - versions, 0)

    def chosen(self, row: Row) -> NDArray[np.bool_]:
        """[T]: True where the policy chose the token, of a row that is not left out; of any staleness."""
        mask: NDArray[np.bool_] = row.columns["loss_mask"]
        return np.zeros_like(mask) if self.masks_truncated and row.columns["truncated"] else mask

    def trained(self, row: Row, batch: int) -> NDArray[np.bool_]:
        """[T]: True where the token enters the loss. Raises StalenessError."""
        mask = self.chosen(row)
        if self.allows_late:
            return mask
        fresh = self.staleness(batch, row.columns["versions"]) <= self.bound
        if not self.masks and bool((mask & ~fresh).any()):
            worst = int(self.staleness(batch, row.columns["versions"])[mask].max())
            raise StalenessError(
                f"group {row.group} reached batch {batch} with staleness {worst}, bound {self.bound}: this is a fault "
                "of Headrace; please report it with the run's folder"
            )
        return mask & fresh


@dataclass(frozen=True, slots=True)
class FreshRule:
    """Which tokens show the engine's mismatch: those whose log-prob the trainer works out by the weights that sampled
    them."""

    lineage: Lineage
    keeps_keys: bool = False
    """Whether the engine goes on with the keys and values of before a swap (`swap: keep`). A sample that it swapped in
    the midst of then shows more than the mismatch, and none of its tokens count."""

    def tokens(self, batch: int, versions: NDArray[np.int32], branches: NDArray[np.int32]) -> NDArray[np.bool_]:
        """[T]: True where the weights that `batch` begins with sampled the token."""
        fresh: NDArray[np.bool_] = (versions == batch) & ~self.lineage.lost(branches, versions)
        if self.keeps_keys and not np.array_equal(fresh, branches >= 0):
            return np.zeros_like(fresh)
        return fresh


@dataclass(slots=True)
class BatchStats:
    """Sums over the rows of one batch."""

    samples: int = 0
    trained_samples: int = 0
    """Those of which a token enters the loss."""
    truncated_samples: int = 0
    reward: float = 0.0
    group_rewards: dict[GroupKey, tuple[float, float, int]] = field(default_factory=dict)
    """Of each group the lowest and the highest reward, and its samples."""
    response_tokens: int = 0
    masked_tokens: int = 0
    lost_branch_tokens: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    term_sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Of a reward of several terms, by name; the reward model's score is `model`."""
    term_samples: Counter[str] = field(default_factory=Counter)

    @property
    def terms(self) -> dict[str, float]:
        """Means over the samples that have the term."""
        return {name: total / self.term_samples[name] for name, total in self.term_sums.items()}

    @property
    def reward_range(self) -> tuple[float, float]:
        """The lowest and the highest reward of a sample."""
        lows, highs, _ = zip(*self.group_rewards.values(), strict=True)
        return min(lows), max(highs)

    @property
    def equal_groups(self) -> int:
        """Groups whose samples all have one reward. Groups of one sample are compared with each other instead."""
        if all(samples == 1 for _, _, samples in self.group_rewards.values()):
            low, high = self.reward_range
            return len(self.group_rewards) if low == high and len(self.group_rewards) > 1 else 0
        return sum(low == high for low, high, _ in self.group_rewards.values())

    def count_reward(self, group: GroupKey, reward: float) -> None:
        """Of one sample."""
        self.reward += reward
        low, high, samples = self.group_rewards.get(group, (reward, reward, 0))
        self.group_rewards[group] = (min(low, reward), max(high, reward), samples + 1)

    def add(self, row: Row, trained: NDArray[np.bool_], batch: int, rule: StalenessRule, lineage: Lineage) -> None:
        columns = row.columns
        self.samples += 1
        self.trained_samples += bool(trained.any())
        self.truncated_samples += bool(columns["truncated"])
        self.count_reward(row.group, columns["reward"])
        scored = {"model": columns["model_score"]} if "model_score" in columns else {}
        for name, value in {**columns["terms"], **scored}.items():
            self.term_sums[name] += value
            self.term_samples[name] += 1
        self.response_tokens += int(columns["loss_mask"].sum())
        self.masked_tokens += int((rule.chosen(row) & ~trained).sum())
        self.lost_branch_tokens += int((lineage.lost(columns["branches"], columns["versions"]) & trained).sum())
        values, counts = np.unique(rule.staleness(batch, columns["versions"])[trained], return_counts=True)
        for value, count in zip(values, counts, strict=True):
            self.staleness[int(value)] += int(count)
