"""What truncation left in consecutive decode steps, brought to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.algorithms.kept_sets import KeptSets
from headrace.engines.embedded.sampler import Kept

MOST_WAITING = 2**28
"""Bytes of kept sets, beyond which a run of decode steps ends and hands them out."""


@dataclass(frozen=True, slots=True)
class KeptRun:
    ids: NDArray[np.int32]
    """[steps, n, K]: the first `counts` of each are its kept set."""
    counts: NDArray[np.int32]
    """[steps, n]."""
    vocab_size: int

    @staticmethod
    def of(steps: Sequence[Kept], vocab_size: int) -> KeptRun:
        counts = torch.stack([step.counts for step in steps]).cpu()
        width = int(counts.max())
        ids = torch.stack([step.ids[:, :width].to(torch.int32) for step in steps]).cpu()
        return KeptRun(ids.numpy(), counts.to(torch.int32).numpy(), vocab_size)

    def of_slot(self, slot: int, steps: int) -> KeptSets:
        """Of a slot's first so many tokens."""
        counts, ids = self.counts[:steps, slot], self.ids[:steps, slot]
        return KeptSets.of(ids[np.arange(ids.shape[1]) < counts[:, None]], counts, self.vocab_size)
