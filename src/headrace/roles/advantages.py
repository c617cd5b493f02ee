"""Advantages: compares the episodes of groups, and spreads what comes out over their tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.estimate import Compared
from headrace.experience.index import Row
from headrace.experience.samplers import sealed_batch, whole_groups
from headrace.roles.context import RoleContext

NAME = "advantages"

Estimator = Callable[[Compared, int | None], Mapping[str, Tensor]]
"""Columns by name, [N] each; given the batch's number where the data is all of it."""


class AdvantagesRole:
    """Waits for what it reads by column readiness alone: one group at a time, or the sealed batch."""

    def __init__(
        self,
        context: RoleContext,
        estimator: Estimator,
        *,
        reads: Collection[str],
        extra: Sequence[str] = (),
        whole_batch: bool = False,
        lane: str | None = None,
    ) -> None:
        """`reads`: columns that its stage declares. `extra`: those among them that only the user's own estimator
        knows. `lane`: where it computes, if not in the event loop: a function of the user's may take its time."""
        self._lane = lane
        self._reads = frozenset(reads)
        self._extra = tuple(extra)
        self._context = context
        self._estimator = estimator
        self._whole_batch = whole_batch
        self._sampler = sealed_batch(context.flow) if whole_batch else whole_groups
        self._what = "rows of the sealed batch" if whole_batch else "kept groups"

    async def run(self) -> None:
        table = self._context.table
        async for lease in self._context.leases(NAME, self._sampler, self._what):
            rows = list(lease.rows)
            lengths = np.cumsum([len(row.columns["tokens"]) for row in rows])[:-1]
            batch = self._context.flow.batch if self._whole_batch else None
            data = compared(rows, self._reads, self._extra)
            if self._lane is None:
                columns = self._estimator(data, batch)
            else:
                table.hold(lease)
                columns = await self._context.compute(self._lane, "the advantage", self._estimator, data, batch)
            # Rows of a group that was dropped meanwhile have left the lease.
            there = [row.row_id for row in lease.rows]
            for name, values in columns.items():
                parts = np.split(values.numpy().astype(np.float32), lengths)
                of_row = {row.row_id: part for row, part in zip(rows, parts, strict=True)}
                table.write(there, name, [of_row[row_id] for row_id in there], lease)
            table.ack(lease)


def compared(rows: Sequence[Row], reads: Collection[str], extra: Sequence[str] = ()) -> Compared:
    """Rows of whole groups as flat tensors. `reads`: columns that are there; `extra` are those of the user's own.

    The baseline is taken over episodes: one of several samples counts once.
    """
    episodes: dict[tuple[object, int], int] = {}
    groups: dict[object, int] = {}
    of_row, rewards, group_index = [], [], []
    for row in rows:
        key = (row.group, row.columns["episode"])
        if key not in episodes:
            episodes[key] = len(episodes)
            rewards.append(row.columns["reward"])
            group_index.append(groups.setdefault(row.group, len(groups)))
        of_row.append(episodes[key])

    def column(name: str) -> Tensor | None:
        if name not in reads:
            return None
        parts = [np.broadcast_to(row.columns[name], len(row.columns["tokens"])) for row in rows]
        return torch.from_numpy(np.concatenate(parts).astype(np.float64))

    def per_sample(name: str, dtype: torch.dtype) -> Tensor | None:
        return torch.tensor([row.columns[name] for row in rows], dtype=dtype) if name in reads else None

    mask = np.concatenate([row.columns["loss_mask"] for row in rows])
    behavior = column("logprobs")
    assert behavior is not None
    return Compared(
        rewards=torch.tensor(rewards, dtype=torch.float64),
        group_index=torch.tensor(group_index, dtype=torch.int64),
        episode=torch.tensor(of_row, dtype=torch.int64),
        mask=torch.from_numpy(mask),
        sample_index=torch.repeat_interleave(
            torch.arange(len(rows)), torch.tensor([len(row.columns["tokens"]) for row in rows])
        ),
        behavior=behavior,
        reference=column("reference"),
        values=column("values"),
        truncated=per_sample("truncated", torch.bool),
        last_values=per_sample("last_value", torch.float64),
        proximal=column("proximal"),
        columns={name: values for name in extra if (values := column(name)) is not None},
    )
