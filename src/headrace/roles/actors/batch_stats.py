"""What a batch's rows say of staleness, reward and length; and which of their tokens may enter the loss."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.experience.header import SampleHeader, Span
from headrace.experience.leases import Row
from headrace.experience.sample import GroupKey
from headrace.training.rows.spans import OUR_FAULT, StalenessError
from headrace.weights.version import Lineage


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

    def staleness(self, batch: int, version: int) -> int:
        """Batch minus version, never below 0."""
        return max(batch - version, 0)

    def chosen(self, header: SampleHeader) -> tuple[Span, ...]:
        """The tokens that the policy chose, of a sample that is not left out; of any staleness."""
        return () if self.masks_truncated and header.is_truncated else header.spans

    def trained(self, header: SampleHeader, batch: int) -> tuple[Span, ...]:
        """The tokens that enter the loss. Raises StalenessError."""
        chosen = self.chosen(header)
        if self.allows_late:
            return chosen
        fresh = tuple(span for span in chosen if self.staleness(batch, span.number) <= self.bound)
        if not self.masks and len(fresh) < len(chosen):
            worst = max(self.staleness(batch, span.number) for span in chosen)
            raise StalenessError(
                f"group {header.key} reached batch {batch} with staleness {worst}, bound {self.bound}: {OUR_FAULT}"
            )
        return fresh


@dataclass(frozen=True, slots=True)
class FreshRule:
    """Which tokens show the engine's mismatch: those whose log-prob the trainer works out by the weights that sampled
    them."""

    lineage: Lineage
    keeps_keys: bool = False
    """Whether the engine goes on with the keys and values of before a swap (`swap: keep`). A sample that it swapped in
    the midst of then shows more than the mismatch, and none of its tokens count."""

    def tokens(self, batch: int, spans: Sequence[Span]) -> tuple[Span, ...]:
        """Of a sample's `spans` those that the weights sampled which `batch` begins with."""
        fresh = tuple(
            span for span in spans if span.number == batch and not self.lineage.lost(span.branch, span.number)
        )
        return () if self.keeps_keys and len(fresh) < len(spans) else fresh


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

    def add(self, row: Row, trained: Sequence[Span], batch: int, rule: StalenessRule, lineage: Lineage) -> None:
        """`trained`: of the row's tokens those that enter the loss."""
        columns = row.columns
        self.samples += 1
        self.trained_samples += bool(trained)
        self.truncated_samples += row.header.is_truncated
        self.count_reward(row.group, columns["reward"])
        scored = {"model": columns["model_score"]} if "model_score" in columns else {}
        for name, value in {**columns["terms"], **scored}.items():
            self.term_sums[name] += value
            self.term_samples[name] += 1
        self.response_tokens += row.header.response_tokens
        self.masked_tokens += _tokens(rule.chosen(row.header)) - _tokens(trained)
        for span in trained:
            self.staleness[rule.staleness(batch, span.number)] += span.tokens
            if lineage.lost(span.branch, span.number):
                self.lost_branch_tokens += span.tokens


def _tokens(spans: Iterable[Span]) -> int:
    return sum(span.tokens for span in spans)
