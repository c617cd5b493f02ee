"""The experts that tokens were routed to, from the cache to the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

Places = tuple[int, int, int]
"""A slot, and which of its tokens: from, to."""


def experts_at(cached: torch.Tensor, places: Sequence[Places]) -> list[NDArray[np.unsignedinteger]]:
    """`cached` [slots, capacity, layers, k]; of each of `places` [to - from, layers, k], copied. One copy for all."""
    if not places:
        return []
    slots = np.concatenate([np.full(end - begin, slot) for slot, begin, end in places])
    tokens = np.concatenate([np.arange(begin, end) for _, begin, end in places])
    at = [torch.from_numpy(each).to(cached.device) for each in (slots, tokens)]
    found: NDArray[np.int16] = cached[at[0], at[1]].cpu().numpy()
    ends = np.cumsum([end - begin for _, begin, end in places])[:-1]
    return np.split(found.view(np.uint16) if found.dtype == np.int16 else found, ends)
