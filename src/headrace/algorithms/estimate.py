"""From what is known of some groups' samples to the columns that the policy's and the critic's losses read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from headrace.algorithms import advantages, kl, shaping
from headrace.algorithms.kl_controllers import KLCoefficient
from headrace.algorithms.pieces import Pieces
from headrace.algorithms.segments import keep
from headrace.config.algorithm import AlgorithmConfig


@dataclass(frozen=True, slots=True)
class Compared:
    """Whole groups: E episodes of S samples of N tokens. An episode whose history was rewritten has several samples."""

    rewards: Tensor
    """[E], as scored."""
    group_index: Tensor
    """[E] int64."""
    episode: Tensor
    """[S] int64: the row of each sample's episode."""
    mask: Tensor
    """[N] bool: True where the policy chose the token."""
    sample_index: Tensor
    """[N] int64, 0 ... S - 1."""
    behavior: Tensor
    """[N] log-probs, as is `reference`."""
    reference: Tensor | None = None
    values: Tensor | None = None
    """[N]: the critic's."""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """[N] each: those of `algorithm.advantage_reads`."""
    shaped: Tensor | None = None
    """[E]: `rewards` after `algorithm.shaping` and the KL penalty, for the user's own advantage."""

    @property
    def lengths(self) -> Tensor:
        """[E] float: tokens that the policy chose."""
        per_sample = torch.zeros(len(self.episode), dtype=torch.float64)
        per_sample.index_add_(0, self.sample_index, self.mask.double())
        return torch.zeros(len(self.rewards), dtype=torch.float64).index_add(0, self.episode, per_sample)


class AdvantageEstimator:
    """What `config` says of rewards, KL and advantages."""

    def __init__(
        self,
        config: AlgorithmConfig,
        *,
        max_length: int,
        pieces: Pieces | None = None,
        coefficient: KLCoefficient | None = None,
    ) -> None:
        """`max_length`: of a response, for the overlong penalty. `coefficient`: of a KL in the reward, which follows
        what it sees; one of its own unless given."""
        self._config = config
        self._max_length = max_length
        self._pieces = pieces or Pieces()
        self._coefficient = coefficient or KLCoefficient(config.kl)

    def __call__(self, data: Compared) -> dict[str, Tensor]:
        """Columns by name, [N] each: `advantages`; `returns` with a critic."""
        config = self._config
        rewards = self._shaped(data)
        penalty = self._penalty(data)
        columns = {}
        if config.advantage == "gae":
            if data.values is None:
                raise ValueError("advantage is gae, which needs the critic's values; add the stage that writes them")
            per_token = self._on_tokens(rewards, penalty, data)
            values, columns["returns"] = advantages.gae(
                per_token, data.values, data.mask, data.sample_index, gamma=config.gamma, lam=config.lam
            )
            if config.whiten:
                values = advantages.whiten(values, data.mask)
        elif config.advantage == "reinforce_plus_plus":
            values = advantages.reinforce_plus_plus(
                rewards[data.episode],
                torch.zeros_like(data.behavior) if penalty is None else penalty,
                data.mask,
                data.sample_index,
                beta=self._coefficient.value,
                gamma=config.gamma,
            )
        else:
            values = self._by_episode(self._less_penalty(rewards, penalty, data), data)
        columns["advantages"] = values
        if penalty is not None and config.kl.target is not None:
            self._coefficient.follow(float(penalty.sum()), len(data.rewards))
        return columns

    def _shaped(self, data: Compared) -> Tensor:
        settings, rewards = self._config.shaping, data.rewards
        raw = rewards
        if settings.clip is not None:
            rewards = shaping.clip_rewards(rewards, low=settings.clip[0], high=settings.clip[1])
        if settings.overlong_buffer is not None:
            rewards = rewards + shaping.overlong_penalty(
                data.lengths,
                max_length=self._max_length,
                buffer=settings.overlong_buffer,
                factor=settings.overlong_factor,
            )
        if settings.length_weight:
            rewards = rewards + shaping.length_penalty(
                data.lengths, raw > settings.correct_above, data.group_index, weight=settings.length_weight
            )
        if self._pieces.shaping is not None:
            rewards = self._pieces.shaping(rewards, data.lengths, data.group_index).to(rewards.dtype)
        return rewards

    def _penalty(self, data: Compared) -> Tensor | None:
        """KL(behaviour || reference) at each token, if the reward pays for it."""
        setting = self._config.kl
        if setting.place != "reward" or not setting.coefficient or data.reference is None:
            return None
        if self._pieces.kl is not None:
            return keep(self._pieces.kl(data.behavior, data.reference), data.mask)
        return keep(kl.estimate(data.behavior, data.reference, kind=cast(kl.Kind, setting.estimator)), data.mask)

    def _on_tokens(self, rewards: Tensor, penalty: Tensor | None, data: Compared) -> Tensor:
        nothing = torch.zeros(data.mask.shape, dtype=rewards.dtype)
        return shaping.token_rewards(
            rewards[data.episode],
            nothing if penalty is None else penalty,
            data.mask,
            data.sample_index,
            beta=self._coefficient.value,
        )

    def _less_penalty(self, rewards: Tensor, penalty: Tensor | None, data: Compared) -> Tensor:
        """Where episodes are compared whole, the penalty is that of all their tokens."""
        if penalty is None:
            return rewards
        episode = data.episode[data.sample_index]
        total = torch.zeros_like(rewards).index_add(0, episode, penalty.to(rewards.dtype))
        return rewards - self._coefficient.value * total

    def _by_episode(self, rewards: Tensor, data: Compared) -> Tensor:
        """Values of episodes, at each of their tokens."""
        kind, groups = self._config.advantage, data.group_index
        if self._pieces.advantage is not None:
            values = self._pieces.advantage(replace(data, shaped=rewards))
            if values.shape == data.mask.shape:
                return keep(values, data.mask)
        elif kind == "group_normalized":
            values = advantages.group_normalized(rewards, groups)
        elif kind == "batch_normalized":
            values = advantages.group_normalized(rewards, groups, scale="batch_std")
        elif kind in ("mean_only", "reinforce_plus_plus_baseline"):
            values = advantages.group_normalized(rewards, groups, scale="none")
        elif kind == "leave_one_out":
            values = advantages.leave_one_out(rewards, groups)
        elif kind == "opo":
            values = advantages.opo(rewards, data.lengths, groups)
        else:
            raise ValueError(f"no advantage is named {kind!r}")
        spread = keep(values[data.episode][data.sample_index], data.mask)
        return advantages.whiten(spread, data.mask) if kind == "reinforce_plus_plus_baseline" else spread
