"""Advantages: compares the episodes of groups, and spreads what comes out over their tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.estimate import AdvantageEstimator, Compared, Episodes
from headrace.experience.columns import OnChosenTokens, read
from headrace.experience.index import Row
from headrace.experience.samplers import sealed_batch, whole_groups
from headrace.roles.context import RoleContext
from headrace.runtime.refs import Ref

NAME = "advantages"
LANE = "stages"
"""Where tokens are looked at; functions of the user's compute there too."""
_COMPARED = ("tokens", "loss_mask", "logprobs", "reference", "values", "proximal")


class AdvantagesRole:
    """Waits for what it reads by column readiness alone: one group at a time, or the sealed batch."""

    def __init__(
        self,
        context: RoleContext,
        estimator: AdvantageEstimator,
        *,
        reads: Collection[str],
        extra: Sequence[str] = (),
        whole_batch: bool = False,
    ) -> None:
        """`reads`: columns that its stage declares. `extra`: those among them that only the user's own estimator
        knows."""
        self._reads = frozenset(reads)
        self._extra = tuple(extra)
        self._context = context
        self._estimator = estimator
        self._whole_batch = whole_batch
        self._sampler = sealed_batch(context.flow) if whole_batch else whole_groups
        self._what = "rows of the sealed batch" if whole_batch else "kept groups"

    async def run(self) -> None:
        """Until the run is finished. Where rewards and lengths alone are compared, no token is looked at."""
        table = self._context.table
        async for lease in self._context.leases(NAME, self._sampler, self._what):
            rows = list(lease.rows)
            batch = self._context.flow.batch if self._whole_batch else None
            columns: Mapping[str, Sequence[object]]
            if self._estimator.is_of_episodes:
                columns = {"advantages": self._by_episode(rows)}
            else:
                table.hold(lease)
                columns = await self._context.compute(LANE, "the advantage", self._by_token, rows, batch)
            for name, values in columns.items():
                table.fill(lease, name, {row.row_id: value for row, value in zip(rows, values, strict=True)})
            table.ack(lease)

    def _by_episode(self, rows: Sequence[Row]) -> list[OnChosenTokens]:
        episodes = _Episodes(rows)
        lengths = torch.zeros(len(episodes.rewards), dtype=torch.float64)
        own = torch.tensor([row.header.response_tokens for row in rows], dtype=torch.float64)
        lengths.index_add_(0, episodes.of_row, own)
        found = self._estimator.of_episodes(Episodes(episodes.rewards, episodes.groups, lengths))
        return [OnChosenTokens(value) for value in found[episodes.of_row].tolist()]

    def _by_token(self, rows: Sequence[Row], batch: int | None) -> dict[str, list[Ref]]:
        """On the lane."""
        refs = self._context.refs
        names = [name for name in dict.fromkeys((*_COMPARED, *self._extra)) if name in self._reads]
        data = compared(rows, [read(refs, row, names) for row in rows], self._reads, self._extra)
        ends = np.cumsum([row.header.length for row in rows])[:-1]
        return {
            name: [refs.put({name: part}) for part in np.split(values.numpy().astype(np.float32), ends)]
            for name, values in self._estimator(data, batch).items()
        }


class _Episodes:
    """The rows' episodes: the baseline is taken over them, and one of several samples counts once."""

    def __init__(self, rows: Sequence[Row]) -> None:
        episodes: dict[tuple[object, int], int] = {}
        groups: dict[object, int] = {}
        of_row, rewards, group_index = [], [], []
        for row in rows:
            key = (row.group, row.header.episode)
            if key not in episodes:
                episodes[key] = len(episodes)
                rewards.append(row.columns["reward"])
                group_index.append(groups.setdefault(row.group, len(groups)))
            of_row.append(episodes[key])
        self.of_row = torch.tensor(of_row, dtype=torch.int64)
        self.rewards = torch.tensor(rewards, dtype=torch.float64)
        self.groups = torch.tensor(group_index, dtype=torch.int64)


def compared(
    rows: Sequence[Row], values: Sequence[Mapping[str, Any]], reads: Collection[str], extra: Sequence[str] = ()
) -> Compared:
    """Rows of whole groups as flat tensors. `values`: of each row its columns of tokens. `reads`: columns that are
    there; `extra` are those of the user's own."""
    lengths = [row.header.length for row in rows]
    episodes = _Episodes(rows)

    def column(name: str) -> Tensor | None:
        if name not in reads:
            return None
        parts = [np.broadcast_to(found[name], length) for found, length in zip(values, lengths, strict=True)]
        return torch.from_numpy(np.concatenate(parts).astype(np.float64))

    def per_sample(name: str, dtype: torch.dtype) -> Tensor | None:
        return torch.tensor([row.columns[name] for row in rows], dtype=dtype) if name in reads else None

    behavior = column("logprobs")
    assert behavior is not None
    return Compared(
        rewards=episodes.rewards,
        group_index=episodes.groups,
        episode=episodes.of_row,
        mask=torch.from_numpy(np.concatenate([found["loss_mask"] for found in values])),
        sample_index=torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(lengths)),
        behavior=behavior,
        reference=column("reference"),
        values=column("values"),
        truncated=per_sample("truncated", torch.bool),
        last_values=per_sample("last_value", torch.float64),
        proximal=column("proximal"),
        columns={name: found for name in extra if (found := column(name)) is not None},
    )
