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

_OF_EPISODES = ("group_normalized", "batch_normalized", "mean_only", "leave_one_out", "opo")
"""Advantages that compare episodes by their rewards and lengths: one number for all tokens of an episode."""


@dataclass(frozen=True, slots=True)
class Episodes:
    """What is compared of E episodes, without their tokens."""

    rewards: Tensor
    """[E], as scored."""
    group_index: Tensor
    """[E] int64."""
    lengths: Tensor
    """[E] float64: tokens that the policy chose."""
    longest_turns: Tensor
    """[E] float64: of these, the most in a row, with none between them that it was given."""


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
    truncated: Tensor | None = None
    """[S] bool: a limit on tokens, context or turns cut the sample off. None: not known, none did."""
    last_values: Tensor | None = None
    """[S]: the critic's, of the state at which a sample was cut off; 0 for one that ended."""
    proximal: Tensor | None = None
    """[N] log-probs of the policy that the batch begins with."""

    @property
    def ended(self) -> Tensor:
        """[N] bool: `mask` without the samples that were cut off."""
        return self.mask if self.truncated is None else self.mask & ~self.truncated[self.sample_index]

    @property
    def lengths(self) -> Tensor:
        """[E] float: tokens that the policy chose."""
        per_sample = torch.zeros(len(self.episode), dtype=torch.float64)
        per_sample.index_add_(0, self.sample_index, self.mask.double())
        return torch.zeros(len(self.rewards), dtype=torch.float64).index_add(0, self.episode, per_sample)

    @property
    def longest_turns(self) -> Tensor:
        """[E] float64: the most tokens in a row that the policy chose."""
        begins = torch.ones(len(self.mask), dtype=torch.bool)
        begins[1:] = (self.mask[1:] != self.mask[:-1]) | (self.sample_index[1:] != self.sample_index[:-1])
        run = begins.cumsum(0) - 1
        tokens = torch.zeros(len(self.mask), dtype=torch.float64).index_add(0, run, self.mask.double())
        longest = torch.zeros(len(self.rewards), dtype=torch.float64)
        return longest.scatter_reduce(0, self.episode[self.sample_index], tokens[run], "amax")


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
        """`max_length`: of one turn, for the overlong penalty. `coefficient`: of a KL in the reward, which follows
        what it sees; one of its own unless given."""
        self._config = config
        self._max_length = max_length
        self._pieces = pieces or Pieces()
        self._coefficient = coefficient or KLCoefficient(config.kl)

    @property
    def is_of_episodes(self) -> bool:
        """Whether advantages are one number an episode, which follows from rewards and lengths (`of_episodes`)."""
        in_reward = self._config.kl.place == "reward" and bool(self._config.kl.coefficient)
        return self._config.advantage in _OF_EPISODES and not in_reward and not self._pieces.has_part_in_advantages

    def of_episodes(self, data: Episodes) -> Tensor:
        """[E] float64: what `advantages` is at each token that the policy chose in the episode."""
        return self._by_episode(self._shaped(data), data)

    def __call__(self, data: Compared, batch: int | None = None) -> dict[str, Tensor]:
        """Columns by name, [N] each: `advantages`; `returns` with a critic. `batch`: its number, where `data` is all of
        it; then a coefficient that moves follows its KL."""
        beta = self._coefficient.value if batch is None else self._coefficient.of(batch)
        columns, paid = self.at(data, beta)
        if paid is not None and batch is not None and self._config.kl.moves:
            self._coefficient.follow(batch, paid, len(data.rewards))
        return columns

    def at(self, data: Compared, beta: float) -> tuple[dict[str, Tensor], float | None]:
        """The columns with this coefficient of the KL, and the KL that the reward pays for, summed over all of `data`;
        None if it pays for none."""
        config = self._config
        rewards = self._shaped(data)
        trained = data.ended if config.truncated == "mask" else data.mask
        penalty = self._penalty(data)
        columns = {}
        if config.advantage == "gae":
            if data.values is None:
                raise ValueError("advantage is gae, which needs the critic's values; add the stage that writes them")
            last_values = data.last_values if config.truncated == "bootstrap" else None
            if config.truncated == "bootstrap" and last_values is None:
                raise ValueError("truncated is bootstrap, which needs last_values; add the stage that writes them")
            per_token = self._on_tokens(rewards, penalty, data, beta)
            values, columns["returns"] = advantages.gae(
                per_token,
                data.values,
                data.mask,
                data.sample_index,
                gamma=config.gamma,
                lam=config.lam,
                last_values=last_values,
            )
            if config.whiten:
                values = advantages.whiten(values, trained)
        elif config.advantage == "reinforce_plus_plus":
            values = advantages.reinforce_plus_plus(
                rewards[data.episode],
                torch.zeros_like(data.behavior) if penalty is None else penalty,
                data.mask,
                data.sample_index,
                beta=beta,
                gamma=config.gamma,
                whiten=False,
            )
            values = advantages.whiten(values, trained)
        else:
            compared = replace(data, shaped=self._less_penalty(rewards, penalty, data, beta))
            if self._pieces.advantage is not None:
                columns = _own_columns(self._pieces.advantage(compared), data)
                values = columns["advantages"]
            else:
                assert compared.shaped is not None
                values = _on_their_tokens(self._by_episode(compared.shaped, data), data)
                if config.advantage == "reinforce_plus_plus_baseline":
                    values = advantages.whiten(values, trained)
        columns["advantages"] = values
        return columns, None if penalty is None else float(penalty.sum())

    def _shaped(self, data: Compared | Episodes) -> Tensor:
        settings, rewards = self._config.shaping, data.rewards
        raw = rewards
        if settings.clip is not None:
            rewards = shaping.clip_rewards(rewards, low=settings.clip[0], high=settings.clip[1])
        if settings.overlong_buffer is not None:
            rewards = rewards + shaping.overlong_penalty(
                data.longest_turns,
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
        """KL(policy || reference) at each token, if the reward pays for it."""
        setting = self._config.kl
        if setting.place != "reward" or not setting.coefficient or data.reference is None:
            return None
        policy = data.behavior if setting.of == "behavior" else data.proximal
        if policy is None:
            raise ValueError("kl.of is proximal, which needs its log-probs; add the stage that writes them")
        if self._pieces.kl is not None:
            return keep(self._pieces.kl(policy, data.reference), data.mask)
        return keep(kl.estimate(policy, data.reference, kind=cast(kl.Kind, setting.estimator)), data.mask)

    def _on_tokens(self, rewards: Tensor, penalty: Tensor | None, data: Compared, beta: float) -> Tensor:
        nothing = torch.zeros(data.mask.shape, dtype=rewards.dtype)
        return shaping.token_rewards(
            rewards[data.episode],
            nothing if penalty is None else penalty,
            data.mask,
            data.sample_index,
            beta=beta,
        )

    def _less_penalty(self, rewards: Tensor, penalty: Tensor | None, data: Compared, beta: float) -> Tensor:
        """Where episodes are compared whole, the penalty is that of all their tokens."""
        if penalty is None:
            return rewards
        episode = data.episode[data.sample_index]
        total = torch.zeros_like(rewards).index_add(0, episode, penalty.to(rewards.dtype))
        return rewards - beta * total

    def _by_episode(self, rewards: Tensor, data: Compared | Episodes) -> Tensor:
        """[E], from [E] `rewards` after shaping and penalty."""
        kind, groups = self._config.advantage, data.group_index
        if kind == "group_normalized":
            return advantages.group_normalized(rewards, groups)
        if kind == "batch_normalized":
            return advantages.group_normalized(rewards, groups, scale="batch_std")
        if kind in ("mean_only", "reinforce_plus_plus_baseline"):
            return advantages.group_normalized(rewards, groups, scale="none")
        if kind == "leave_one_out":
            return advantages.leave_one_out(rewards, groups)
        if kind == "opo":
            return advantages.opo(rewards, data.lengths, groups)
        raise ValueError(f"no advantage is named {kind!r}")


def _own_columns(result: Tensor | Mapping[str, Tensor], data: Compared) -> dict[str, Tensor]:
    """What the user's own advantage gave, on tokens. With a critic, the returns that it learns are advantage + value
    unless they are given: so GAE has it."""
    columns = {"advantages": result} if isinstance(result, Tensor) else dict(result)
    columns = {name: _on_their_tokens(values, data) for name, values in columns.items()}
    if data.values is not None and "returns" not in columns:
        columns["returns"] = keep(columns["advantages"] + data.values, data.mask)
    return columns


def _on_their_tokens(values: Tensor, data: Compared) -> Tensor:
    """[E] or [N] to [N], 0 outside the mask."""
    on_tokens = values if values.shape == data.mask.shape else values[data.episode][data.sample_index]
    return keep(on_tokens, data.mask)
