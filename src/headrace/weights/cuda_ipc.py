"""Weights in the memory of a CUDA device that processes of one machine share: one copy within the device, and none
through the host. The slots' files have their generations alone.

A process opens another's memory by a handle, which is bytes; torch gives and takes them (the functions that
`torch.multiprocessing` passes tensors of a device with). A publisher's slots are there as long as its process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch

from headrace.weights.devices import device_name, device_named
from headrace.weights.plane import Manifest, WeightError
from headrace.weights.slot_format import HEADER, SLOTS, places, slot_name
from headrace.weights.slots import Slot, SlotPublisher, SlotReceiver, mapped_file

_HANDLES = "handles.json"
_BYTES = (1, 4, 6)
"""Places of what is bytes in a storage's handle."""


class CudaIpcPublisher(SlotPublisher):
    transport = "cuda_ipc"
    checks_arrival = False

    def __init__(self, folder: Path, device: torch.device) -> None:
        """`folder`: see `SlotPublisher`. `device`: where the slots are."""
        super().__init__(folder)
        self._device = device
        _HERE[str(folder)] = self

    @property
    def slots(self) -> Sequence[Slot]:
        return self._slots

    def receiver(self) -> CudaIpcReceiver:
        return CudaIpcReceiver(self.address)

    def _made(self, manifest: Manifest) -> Sequence[Slot]:
        found, size = places(manifest.entries)
        memories = [torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(SLOTS)]
        handles = {"device": device_name(self._device), "slots": [_handle(memory) for memory in memories]}
        (self._folder / _HANDLES).write_text(json.dumps(handles))
        return [
            Slot(mapped_file(self._folder / slot_name(number), HEADER, create=True), memory, found)
            for number, memory in enumerate(memories)
        ]


class CudaIpcReceiver(SlotReceiver):
    transport = "cuda_ipc"
    reads_in_place = True

    def _found(self, manifest: Manifest) -> Sequence[Slot]:
        here = _HERE.get(str(self._folder))
        if here is not None:  # a process cannot open its own memory
            return here.slots
        told = json.loads((self._folder / _HANDLES).read_text())
        device, (found, size) = _device_of(told["device"]), places(manifest.entries)
        opened = []
        for number, handle in enumerate(told["slots"]):
            memory = _opened(handle, device)
            if len(memory) < size:
                raise WeightError(f"{self._folder} has {len(memory)} bytes a slot, and {size} are needed; publish anew")
            file = mapped_file(self._folder / slot_name(number), HEADER, create=False)
            opened.append(Slot(file, memory, found))
        return opened


_HERE: WeakValueDictionary[str, CudaIpcPublisher] = WeakValueDictionary()
"""Publishers of this process, by folder."""


def _handle(memory: torch.Tensor) -> list[Any]:
    """By which another process opens it: plain data. Raises WeightError."""
    storage: Any = memory.untyped_storage()
    try:
        parts = list(storage._share_cuda_())
    except RuntimeError as error:
        raise WeightError(
            f"CUDA shares no memory between processes here: {error}; use weights.transport: shm"
        ) from error
    return [part.hex() if place in _BYTES else part for place, part in enumerate(parts)]


def _opened(handle: Sequence[Any], device: torch.device) -> torch.Tensor:
    """Bytes. Raises WeightError."""
    parts = [bytes.fromhex(part) if place in _BYTES else part for place, part in enumerate(handle)]
    new: Any = torch.UntypedStorage._new_shared_cuda
    torch.cuda.init()
    try:
        storage = new(device.index, *parts[1:])
    except RuntimeError as error:
        raise WeightError(
            f"the weights on {device} cannot be opened by another process: {error}; use weights.transport: shm"
        ) from error
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _device_of(name: str) -> torch.device:
    """Raises WeightError."""
    found = device_named(name)
    if found is None:
        raise WeightError(
            f"the weights are on a CUDA device that this process does not see ({name}); use weights.transport: shm"
        )
    return found
