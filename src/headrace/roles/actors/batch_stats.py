"""What a batch's rows say of staleness, reward and length; and which of their tokens may enter the loss."""

from __future__ import annotations

import math
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
    reward_range: tuple[float, float] = (math.inf, -math.inf)
    """The lowest and the highest of a sample."""
    last_rewards: dict[GroupKey, dict[int, tuple[int, float]]] = field(default_factory=lambda: defaultdict(dict))
    """Of each group, of each of its episodes the last sample: its index and its reward."""
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
    def episode_rewards(self) -> list[list[float]]:
        """Of each group those of its episodes."""
        return [[reward for _, reward in episodes.values()] for episodes in self.last_rewards.values()]

    @property
    def episode_reward_mean(self) -> float:
        """An episode of several samples counts once, by the reward of its last."""
        rewards = [reward for group in self.episode_rewards for reward in group]
        return sum(rewards) / len(rewards)

    @property
    def equal_groups(self) -> int:
        """Groups whose episodes all have one reward. Groups of one episode are compared with each other instead."""
        groups = self.episode_rewards
        if all(len(rewards) == 1 for rewards in groups):
            return len(groups) if len({rewards[0] for rewards in groups}) == 1 and len(groups) > 1 else 0
        return sum(len(set(rewards)) == 1 for rewards in groups)

    def count_reward(self, group: GroupKey, episode: int, index: int, reward: float) -> None:
        """Of one sample, the `index`-th of its episode."""
        self.reward += reward
        low, high = self.reward_range
        self.reward_range = min(low, reward), max(high, reward)
        episodes = self.last_rewards[group]
        if episode not in episodes or episodes[episode][0] <= index:
            episodes[episode] = index, reward

    def add(self, row: Row, trained: Sequence[Span], batch: int, rule: StalenessRule, lineage: Lineage) -> None:
        """`trained`: of the row's tokens those that enter the loss."""
        columns = row.columns
        self.samples += 1
        self.trained_samples += bool(trained)
        self.truncated_samples += row.header.is_truncated
        self.count_reward(row.group, row.header.episode, row.header.index, columns["reward"])
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

    def leave_untrained(self) -> None:
        """None of the rows is trained on: no token of theirs is stale, left out or lost."""
        self.trained_samples = self.masked_tokens = self.lost_branch_tokens = 0
        self.staleness.clear()


def _tokens(spans: Iterable[Span]) -> int:
    return sum(span.tokens for span in spans)
