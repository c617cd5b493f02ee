"""Packing: the samples of a micro-batch laid end to end in one row, without any padding.

Entry i of every array is about token i itself: its log-prob is the one with which tokens 0 to i-1 of the same sample
predict it. So a sample's first token, which nothing predicts, is never trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.algorithms.kept_sets import KeptSets, joined


@dataclass(frozen=True, slots=True)
class PackRow:
    """One sample to be packed, T tokens long."""

    tokens: NDArray[np.integer]
    """[T], T >= 1."""
    mask: NDArray[np.bool_]
    """[T]: True where the token enters the loss."""
    columns: Mapping[str, NDArray[np.floating] | float] = field(default_factory=dict)
    """Per token [T], or one value for all of the sample's tokens."""
    kept: KeptSets | None = None
    """Of the tokens that were sampled under top-k or top-p; None if none was."""
    temperatures: NDArray[np.float32] | None = None
    """[T]: that each token of the mask was sampled at; None where all were at one, which whoever computes knows."""
    experts: NDArray[np.unsignedinteger] | None = None
    """[t, layers, k], t <= T: those that the first t tokens are routed to. None: the model's routers choose for all."""

    def __post_init__(self) -> None:
        length = len(self.tokens)
        if length == 0:
            raise ValueError("a row without tokens cannot be packed; leave it out")
        if self.kept is not None and len(self.kept) != length:
            raise ValueError(f"{len(self.kept)} kept sets are given, but the row has {length} tokens")
        of_tokens: dict[str, Any] = {"mask": self.mask, "temperatures": self.temperatures, **self.columns}
        for name, values in of_tokens.items():
            if np.ndim(values) and np.shape(values) != (length,):
                raise ValueError(f"{name} has shape {np.shape(values)}, but the row has {length} tokens")
        if self.experts is not None and (self.experts.ndim != 3 or len(self.experts) > length):
            raise ValueError(f"experts have shape {self.experts.shape}, and the row has {length} tokens")
        if self.temperatures is not None and not (self.temperatures[self.mask] > 0).all():
            raise ValueError("a token of the mask has no temperature above 0; log-probs exist for such alone")

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """The kept sets of N tokens, as tensors on one device."""

    ids: Tensor
    """[M] int64: the ids of all sets, one set after another."""
    counts: Tensor
    """[N] int64: how many each has; 0 where there is no set."""

    def padded(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """The sets of the tokens `at` [P]: ids [P, K], K that of the largest, and which of them count, [P, K] bool."""
        counts = self.counts[at]
        place = torch.arange(int(counts.max()), device=counts.device)
        starts = (self.counts.cumsum(0) - self.counts)[at]
        count = place < counts[:, None]
        return self.ids[torch.where(count, starts[:, None] + place, 0)], count

    def of(self, run: slice) -> KeptTokens:
        """Of some tokens that follow each other."""
        before, own = int(self.counts[: run.start].sum()), int(self.counts[run].sum())
        return KeptTokens(self.ids[before : before + own], self.counts[run])

    def to(self, device: torch.device) -> KeptTokens:
        return KeptTokens(self.ids.to(device), self.counts.to(device))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """N tokens of S samples, end to end. All tensors are on one device, except `sequence_starts`."""

    tokens: Tensor
    """[N] int64."""
    positions: Tensor
    """[N] int64: place of the token within its sample, from 0."""
    sequence_starts: Tensor
    """[S+1] int64, always on the CPU: sample s is the tokens from entry s to entry s+1."""
    mask: Tensor
    """[N] bool: True where the token enters the loss; False at every sample's first token."""
    sample_index: Tensor
    """[N] int64: which of the S samples the token belongs to."""
    columns: dict[str, Tensor]
    """[N] float32 each."""
    kept: KeptTokens | None = None
    """None where no token has a kept set."""
    temperatures: Tensor | None = None
    """[N] float32: see `PackRow`."""
    experts: Tensor | None = None
    """[N, layers, k] int16: that each token is routed to; -1 where the model's router chooses."""

    @property
    def num_tokens(self) -> int:
        return self.tokens.shape[0]

    @property
    def num_samples(self) -> int:
        return self.sequence_starts.shape[0] - 1

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sample, S of them."""
        return self.sequence_starts.diff().tolist()

    def to(self, device: torch.device) -> MicroBatch:
        """This micro-batch on `device`; itself if it is there."""
        if self.tokens.device == device:
            return self
        return replace(
            self,
            tokens=self.tokens.to(device),
            positions=self.positions.to(device),
            mask=self.mask.to(device),
            sample_index=self.sample_index.to(device),
            columns={name: column.to(device) for name, column in self.columns.items()},
            kept=None if self.kept is None else self.kept.to(device),
            temperatures=None if self.temperatures is None else self.temperatures.to(device),
            experts=None if self.experts is None else self.experts.to(device),
        )


def pack(rows: Sequence[PackRow]) -> MicroBatch:
    """Lay `rows` end to end, in their order. All must have the same columns. Raises ValueError."""
    if not rows:
        raise ValueError("no rows to pack")
    names = rows[0].columns.keys()
    for place, row in enumerate(rows):
        if row.columns.keys() != names:
            raise ValueError(f"row {place} has columns {sorted(row.columns)}, row 0 has {sorted(names)}")
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    sample_index = np.repeat(np.arange(len(rows), dtype=np.int64), lengths)
    mask = np.concatenate([row.mask for row in rows]).astype(np.bool_)
    mask[starts[:-1]] = False
    columns = {
        name: np.concatenate([np.broadcast_to(np.float32(row.columns[name]), len(row)) for row in rows])
        for name in names
    }
    return MicroBatch(
        tokens=torch.from_numpy(np.concatenate([row.tokens for row in rows]).astype(np.int64)),
        positions=torch.from_numpy(np.arange(starts[-1], dtype=np.int64) - starts[sample_index]),
        sequence_starts=torch.from_numpy(starts),
        mask=torch.from_numpy(mask),
        sample_index=torch.from_numpy(sample_index),
        columns={name: torch.from_numpy(values) for name, values in columns.items()},
        kept=_kept(rows),
        temperatures=_temperatures(rows),
        experts=_experts(rows, starts),
    )


def cut_up(micro: MicroBatch, counts: Sequence[int]) -> list[MicroBatch]:
    """Its samples in runs of so many each, in their order."""
    runs = []
    first = 0
    for count in counts:
        samples, first = slice(first, first + count), first + count
        begin, end = (int(micro.sequence_starts[place]) for place in (samples.start, samples.stop))
        run = slice(begin, end)
        kept = micro.kept
        runs.append(
            MicroBatch(
                tokens=micro.tokens[run],
                positions=micro.positions[run],
                sequence_starts=micro.sequence_starts[samples.start : samples.stop + 1] - begin,
                mask=micro.mask[run],
                sample_index=micro.sample_index[run] - samples.start,
                columns={name: column[run] for name, column in micro.columns.items()},
                kept=None if kept is None else kept.of(run),
                temperatures=None if micro.temperatures is None else micro.temperatures[run],
                experts=None if micro.experts is None else micro.experts[run],
            )
        )
    return runs


def _kept(rows: Sequence[PackRow]) -> KeptTokens | None:
    sets = joined([row.kept for row in rows], map(len, rows))
    if sets is None or not sets.counts.any():
        return None
    ids, counts = sets.ids()
    return KeptTokens(torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(counts.astype(np.int64)))


def _temperatures(rows: Sequence[PackRow]) -> Tensor | None:
    found = [row.temperatures for row in rows if row.temperatures is not None]
    if found and len(found) < len(rows):
        raise ValueError(f"{len(found)} of {len(rows)} rows have temperatures; all must, or none")
    return torch.from_numpy(np.concatenate(found)) if found else None


def _experts(rows: Sequence[PackRow], starts: NDArray[np.int64]) -> Tensor | None:
    found = [row.experts for row in rows if row.experts is not None]
    if not found:
        return None
    if len(shapes := {each.shape[1:] for each in found}) > 1:
        raise ValueError(f"rows have experts of the shapes {sorted(shapes)}; they are of different models")
    whole = np.full((int(starts[-1]), *found[0].shape[1:]), -1, np.int16)
    for row, start in zip(rows, starts[:-1], strict=True):
        if row.experts is not None:
            whole[start : start + len(row.experts)] = row.experts
    return torch.from_numpy(whole)


def plan_microbatches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Cut samples of these lengths, in their order, into micro-batches of at most `max_tokens` tokens: as few as their
    order allows, and of all such cuts one whose largest part is as small as can be.

    Every index is in exactly one micro-batch, and neighbours stay together, as the samples of a prompt, which share the
    pass over it. A longer sample is a micro-batch of its own.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}; use 1 or more")
    fewest = len(_cut(lengths, max_tokens))
    # A larger limit never needs more parts, so the smallest one that needs no more is found by halving.
    low, high = 1, max_tokens
    while low < high:
        middle = (low + high) // 2
        if len(_cut(lengths, middle)) <= fewest:
            high = middle
        else:
            low = middle + 1
    return _cut(lengths, high)


def _cut(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Parts of at most `limit` tokens, each as long as it can be; or of one longer sample."""
    parts: list[list[int]] = []
    room = 0
    for index, length in enumerate(lengths):
        if not parts or length > room:
            parts.append([])
            room = limit
        parts[-1].append(index)
        room -= length
    return parts
