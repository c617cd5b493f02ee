"""Advantages of tokens: whole groups as flat tensors, and what an estimator makes of them. Run off the event loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.estimate import Compared
from headrace.experience.columns import Columned, read, refs_of
from headrace.runtime.refs import Ref, Refs, near

_COMPARED = ("tokens", "loss_mask", "logprobs", "reference", "values", "proximal")


class Estimator(Protocol):
    """`AdvantageEstimator`, as far as it looks at tokens."""

    def at(self, data: Compared, beta: float) -> tuple[dict[str, Tensor], float | None]:
        """See `AdvantageEstimator.at`."""


class TokenAdvantages:
    """Blocking."""

    def __init__(self, refs: Refs, estimator: Estimator, reads: Collection[str], extra: Sequence[str] = ()) -> None:
        """`reads`: columns that the stage declares. `extra`: those among them that only the user's own estimator
        knows."""
        self._refs = refs
        self._estimator = estimator
        self._reads = frozenset(reads)
        self._extra = tuple(extra)

    def __call__(self, rows: Sequence[Columned], beta: float) -> tuple[dict[str, list[Ref]], float | None]:
        """Of each column that the losses read a ref for each row; and the KL that their rewards paid for. Raises
        RefLost, PieceError."""
        names = [name for name in dict.fromkeys((*_COMPARED, *self._extra)) if name in self._reads]
        kept = near(self._refs, refs_of(rows))
        data = compared(rows, [read(kept, row, names) for row in rows], self._reads, self._extra)
        ends = np.cumsum([row.header.length for row in rows])[:-1]
        columns, paid = self._estimator.at(data, beta)
        refs = {
            name: [self._refs.put({name: part}) for part in np.split(values.numpy().astype(np.float32), ends)]
            for name, values in columns.items()
        }
        return refs, paid


class EpisodesOf:
    """The rows' episodes: the baseline is taken over them, and one of several samples counts once, by the reward of its
    last."""

    def __init__(self, rows: Sequence[Columned]) -> None:
        episodes: dict[tuple[object, int], int] = {}
        groups: dict[object, int] = {}
        of_row, rewards, group_index = list[int](), list[float](), list[int]()
        for row in rows:
            group = row.header.key
            key = (group, row.header.episode)
            if key not in episodes:
                episodes[key] = len(episodes)
                rewards.append(0.0)
                group_index.append(groups.setdefault(group, len(groups)))
            of_row.append(episodes[key])
            rewards[episodes[key]] = row.columns["reward"]
        self.of_row = torch.tensor(of_row, dtype=torch.int64)
        self.rewards = torch.tensor(rewards, dtype=torch.float64)
        self.groups = torch.tensor(group_index, dtype=torch.int64)


def compared(
    rows: Sequence[Columned], values: Sequence[Mapping[str, Any]], reads: Collection[str], extra: Sequence[str] = ()
) -> Compared:
    """Rows of whole groups as flat tensors. `values`: of each row its columns of tokens. `reads`: columns that are
    there; `extra` are those of the user's own."""
    lengths = [row.header.length for row in rows]
    episodes = EpisodesOf(rows)

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
