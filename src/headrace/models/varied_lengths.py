"""Where the samples of a packed row are, for attention that takes samples of any lengths in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headrace.models.prefixes import SharedPrefixes


@dataclass(frozen=True, slots=True)
class VariedLengths:
    """Of the S samples that have tokens of their own among the U that are computed: U queries, M keys.

    A sample's queries are its own tokens, which follow each other; its keys are all of its tokens, those that it shares
    with an earlier sample included. So query i of n sees key j of m where j - i <= m - n.
    """

    queries: Tensor
    """[S + 1] int32: sample s has the queries from entry s to entry s + 1."""
    keys: Tensor
    """[S + 1] int32, likewise."""
    most_queries: int
    most_keys: int
    source: Tensor | None
    """[M] int64: which of the U tokens each key is; None where no sample shares any: M is U."""
    place: Tensor | None
    """[U] int64: the key that each token is in its own sample; None with `source`."""
    repeats: tuple[Tensor, Tensor] | None
    """Keys that are an earlier sample's tokens, and which tokens: int64 both. None with `source`."""

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device, prefixes: SharedPrefixes) -> VariedLengths:
        """Of samples of these lengths, of whose tokens `prefixes` says which are computed."""
        sizes = np.asarray(lengths, dtype=np.int64)
        sample = np.repeat(np.arange(len(sizes)), sizes)
        own = np.bincount(sample[prefixes.kept], minlength=len(sizes))
        there = own > 0
        keys = sizes[there]
        source = prefixes.source[there[sample]]

        def placed(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).to(device)

        def ends(counts: np.ndarray) -> Tensor:
            return placed(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))

        several = None
        if len(prefixes.kept) < len(source):
            _, place = np.unique(source, return_index=True)
            computed_here = np.zeros(len(source), dtype=np.bool_)
            computed_here[place] = True
            again = np.flatnonzero(~computed_here)
            several = placed(source), placed(place), (placed(again), placed(source[again]))
        return VariedLengths(
            ends(own[there]),
            ends(keys),
            int(own.max()),
            int(keys.max()),
            *(several or (None, None, None)),
        )
