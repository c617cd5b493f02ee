"""Tensors whose memory is given back for a while."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class _Parked:
    storage: torch.UntypedStorage
    size: int
    """Bytes."""
    kept: Tensor | None
    """In the host's memory; None: nobody needs what it held."""


class Parking:
    """What is parked is there again, bit for bit, after `back`, where every view of it finds it: its storage stays the
    same object, with no memory in between."""

    def __init__(self) -> None:
        self._parked: list[_Parked] = []
        self._on_host: dict[int, Tensor] = {}
        """By size, what was used before: pinned memory is made slowly."""

    def park(self, tensors: Iterable[Tensor]) -> None:
        """To the host's memory. What is there already stays: it has nowhere to go."""
        for storage in self._storages(tensors):
            if storage.device.type != "cpu":
                self._give_back(storage, keep=True)

    def drop(self, tensors: Iterable[Tensor]) -> None:
        """What they hold is nothing, or somebody has it all the same: after `back` it is zero."""
        for storage in self._storages(tensors):
            self._give_back(storage, keep=False)

    def back(self) -> None:
        """Have all of it again. Raises torch.OutOfMemoryError on a device without room."""
        while self._parked:
            one = self._parked[-1]
            one.storage.resize_(one.size)
            if one.kept is None:
                _bytes(one.storage).zero_()
            else:
                _bytes(one.storage).copy_(one.kept)
                self._on_host[one.size] = one.kept
            del self._parked[-1]

    def _storages(self, tensors: Iterable[Tensor]) -> list[torch.UntypedStorage]:
        """Of the tensors, each once, without those that are parked."""
        found = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
        return [storage for storage in found.values() if storage.nbytes()]

    def _give_back(self, storage: torch.UntypedStorage, *, keep: bool) -> None:
        size, kept = storage.nbytes(), None
        if keep:
            kept = self._on_host.pop(size, None)
            if kept is None:
                kept = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            kept.copy_(_bytes(storage))
        self._parked.append(_Parked(storage, size, kept))
        storage.resize_(0)


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
