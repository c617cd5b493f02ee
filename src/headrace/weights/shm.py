"""Weights in the host's memory, which processes of one machine share: the tensors are in the slots' files.

Where processors see each other's writes in their order (x86) there is no checksum, since the bytes leave no machine;
elsewhere (ARM) one tells whether all had arrived that the generation says is there.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from headrace.weights.manifest import from_json
from headrace.weights.plane import Manifest
from headrace.weights.slot_format import LAYOUT, SLOTS, places, slot_name
from headrace.weights.slots import Slot, SlotPublisher, SlotReceiver, mapped_file

IN_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")
"""Whether one processor sees another's writes in their order."""


class ShmPublisher(SlotPublisher):
    transport = "shm"
    checks_arrival = not IN_ORDER

    def receiver(self) -> ShmReceiver:
        return ShmReceiver(self.address)

    def _made(self, manifest: Manifest) -> Sequence[Slot]:
        return _slots(self._folder, manifest, create=True)


class ShmReceiver(SlotReceiver):
    transport = "shm"
    reads_in_place = IN_ORDER

    def _found(self, manifest: Manifest) -> Sequence[Slot]:
        return _slots(self._folder, manifest, create=False)


def slots_in(folder: Path) -> list[Slot]:
    """Those of a publisher, to be written as well. Raises OSError, ValueError, WeightError."""
    layout = folder / LAYOUT
    return _slots(folder, from_json(layout.read_bytes(), str(layout)), create=False)


def _slots(folder: Path, manifest: Manifest, *, create: bool) -> list[Slot]:
    found, size = places(manifest.entries)
    files = [mapped_file(folder / slot_name(number), size, create=create) for number in range(SLOTS)]
    return [Slot(file, torch.frombuffer(file, dtype=torch.uint8), found) for file in files]
