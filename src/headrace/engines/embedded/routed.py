"""The experts that tokens were routed to, from the cache to the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.engines.embedded.cache import KeyValueCache

Places = tuple[int, int, int]
"""A slot, and which of its tokens: from, to."""


def experts_at(cache: KeyValueCache, places: Sequence[Places]) -> list[NDArray[np.unsignedinteger]]:
    """Of each of `places` [to - from, layers, k], copied; `cache` has them. One copy for all."""
    if not places or cache.experts is None:
        return []
    slots = np.concatenate([np.full(end - begin, slot) for slot, begin, end in places])
    tokens = np.concatenate([np.arange(begin, end) for _, begin, end in places])
    device = cache.experts.device
    at = cache.at(*(torch.from_numpy(each).to(device) for each in (slots, tokens)))
    found: NDArray[np.int16] = cache.experts[at].cpu().numpy()
    ends = np.cumsum([end - begin for _, begin, end in places])[:-1]
    return np.split(found.view(np.uint16) if found.dtype == np.int16 else found, ends)
