"""How much memory tensors take that operations make, beside those that are there already, at the height of it."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocated(TorchDispatchMode):
    """Of this thread, within the block."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        """Bytes."""
        self._alive: Counter[int] = Counter()
        """Tensors of each storage that was made here."""
        self._now = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_storage(each)._cdata for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)}
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta:
                storage = _storage(tensor)
                if storage._cdata not in given or storage._cdata in self._alive:
                    self._count(tensor, storage._cdata, storage.nbytes())
        return found

    def _count(self, tensor: torch.Tensor, key: int, size: int) -> None:
        if not self._alive[key]:
            self._now += size
            self.peak = max(self.peak, self._now)
        self._alive[key] += 1
        weakref.finalize(tensor, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._alive[key] -= 1
        if not self._alive[key]:
            del self._alive[key]
            self._now -= size


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()
