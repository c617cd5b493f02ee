"""Chunks of prompts, padded into few passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np
import torch

from headrace.engines.embedded.runners.runner import PrefillPass
from headrace.engines.embedded.scheduler import Chunk


def padded_passes(chunks: Iterable[Chunk], device: torch.device) -> Iterator[PrefillPass]:
    """Chunks of like size together: no pass is more than half padding."""
    by_size = sorted(chunks, key=lambda chunk: chunk.stop - chunk.start)
    for _, alike in groupby(by_size, key=lambda chunk: (chunk.stop - chunk.start - 1).bit_length()):
        yield _pad(list(alike), device)


def _pad(chunks: list[Chunk], device: torch.device) -> PrefillPass:
    """A chunk's padding is its last token once more: it computes and writes what is there already."""
    width = max(chunk.stop - chunk.start for chunk in chunks)
    tokens = np.empty((len(chunks), width), dtype=np.int64)
    positions = np.empty((len(chunks), width), dtype=np.int64)
    for row, chunk in enumerate(chunks):
        size = chunk.stop - chunk.start
        tokens[row, :size] = chunk.sequence.token_ids(chunk.start, chunk.stop)
        tokens[row, size:] = tokens[row, size - 1]
        positions[row] = np.minimum(np.arange(chunk.start, chunk.start + width), chunk.stop - 1)
    slots = np.array([chunk.slot for chunk in chunks], dtype=np.int64)
    return PrefillPass(
        torch.from_numpy(tokens).to(device),
        torch.from_numpy(positions).to(device),
        torch.from_numpy(slots).to(device),
        max(chunk.stop for chunk in chunks),
    )
