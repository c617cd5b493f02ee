"""The weights of one rank on their way to whoever takes them: all of a version, or the rank's parts of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.runtime.protocol import Services
from headrace.training.parts_on_disk import Opened, OpenFolder, PartsOnDisk
from headrace.training.protocol import PartWritten, Trainer
from headrace.weights.disk import DiskPublisher
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.manifest import build_manifest
from headrace.weights.parts import OpenSlot, Part, PartWriter, require_all
from headrace.weights.plane import Snapshot, WeightPublisher
from headrace.weights.shm import ShmPublisher
from headrace.weights.swap_check import SwapCheck
from headrace.weights.version import Version

_LANE = "weights out"
"""Of their journey."""


class OutgoingWeights:
    """Blocking, but for `send`; on the trainer's lane."""

    def __init__(
        self,
        trainer: Trainer,
        services: Services,
        *,
        plane: WeightPublisher | None = None,
        aside: Callable[[], WeightPublisher] = MemoryPublisher,
        check: Callable[[], SwapCheck] | None = None,
        by_parts: bool = False,
        deltas: bool = True,
    ) -> None:
        """`plane`: by which they leave; in this process's memory unless given. `aside`: makes one for a version that
        one receiver alone takes. `check`: makes the swap check of the present weights, where they are converted or
        copied on their way. `by_parts`: each rank writes what it has of the weights into what they leave through, as
        they do aside; if that is in this process alone, none leave. `deltas`: see `PartWriter`."""
        self._trainer: Any = trainer
        self._services = services
        self._plane = plane or MemoryPublisher()
        self._make_aside = aside
        self._aside: WeightPublisher | None = None
        self._check = check
        self._by_parts = by_parts
        self._deltas = deltas
        self._leads = True
        self._writer = PartWriter()
        self._snapshot: Snapshot | None = None
        self._shown: Snapshot | None = None
        """Of what is shown aside, while ranks write it."""
        self._began_s = self._copied_s = 0.0

    def join(self, *, leads: bool) -> None:
        """They are of one of several ranks, who have come together; `leads`: of the first."""
        self._leads = leads
        if self._by_parts:
            self._writer = PartWriter(self._trainer.peers, deltas=self._deltas)

    def plane(self) -> tuple[str, str]:
        """Transport and address that a receiver is made of."""
        return self._plane.transport, self._plane.address

    def newest(self) -> Version | None:
        """The newest version that can be received from where they leave; of whoever sent it, where that outlasts who
        did. None before the first. Raises WeightError."""
        return self._plane.receiver().latest()

    def snapshot(self, version: Version) -> Opened | None:
        """Copy the weights as they are. Where they leave by parts that is only begun: all are to `write_part`, then the
        first is to `seal`; the others answer nothing. Raises WeightError."""
        check = None if self._check is None else self._check()
        if self._by_parts:
            if not self._leads or isinstance(self._plane, MemoryPublisher):
                return None
            self._began_s = self._services.clock.now()
            self._snapshot, opened = self._opened(self._plane, version, check)
            return opened
        if not self._leads:
            return None
        began = self._services.clock.now()
        self._snapshot = self._plane.snapshot(version, self._trainer.tensors(), check)
        self._copied_s = self._services.clock.now() - began
        return None

    def write_part(self, opened: Opened) -> PartWritten:
        """What this rank has written of the version: see `PartWriter`. Raises WeightError, RuntimeError."""
        trainer = self._trainer
        if isinstance(opened, OpenFolder):
            boxes = ((name, piece.begin, piece.tensor.detach()) for name, piece in trainer.pieces())
            return PartWritten(PartsOnDisk(trainer.outlines()).write(opened, boxes))
        dtypes = {name: outline.dtype for name, outline in trainer.outlines().items()}
        parts = (Part(name, piece.begin, piece.tensor, dtypes[name]) for name, piece in trainer.pieces())
        size, came = self._writer.write(opened, parts), self._writer.came
        return PartWritten(size, came.size, came.sent)

    def seal(self, written: int) -> None:
        """Of the first, once all have written so many bytes together. Raises WeightError."""
        assert self._snapshot is not None, "no snapshot was begun"
        require_all(self._snapshot.manifest, written)
        self._copied_s = self._services.clock.now() - self._began_s

    async def send(self) -> tuple[int, float]:
        """Have the last snapshot received from now on, whole, while the trainer goes on. Its bytes, and the seconds
        that copying and sending them took. Raises WeightError."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            return 0, 0.0
        began = self._services.clock.now()
        manifest = await self._services.compute(_LANE, self._plane.send, snapshot)
        size = sum(entry.size for entry in manifest.entries)
        return size, self._copied_s + self._services.clock.now() - began

    def show_aside(self, version: Version) -> tuple[str, str] | Opened | None:
        """Publish the weights as they are for one receiver alone, until `end_aside`. As `plane`; where they leave by
        parts, as `snapshot`, with `seal_aside`."""
        if not self._leads:
            return None
        self._aside = self._make_aside()
        if self._by_parts:
            self._shown, opened = self._opened(self._aside, version)
            return opened
        self._aside.publish(version, self._trainer.tensors())
        return self._aside.transport, self._aside.address

    def seal_aside(self, written: int) -> tuple[str, str]:
        """See `seal`; as `plane`."""
        snapshot, self._shown = self._shown, None
        assert self._aside is not None
        assert snapshot is not None, "nothing is shown"
        require_all(snapshot.manifest, written)
        self._aside.send(snapshot)
        return self._aside.transport, self._aside.address

    def end_aside(self) -> None:
        """See `show_aside`."""
        self._aside = None

    def _opened(
        self, plane: WeightPublisher, version: Version, check: SwapCheck | None = None
    ) -> tuple[Snapshot, Opened]:
        """What all ranks are to write into, and what it is once they have."""
        outlines = self._trainer.outlines()
        manifest = build_manifest(version, outlines, checksums=False)
        if isinstance(plane, DiskPublisher):
            folder = OpenFolder(str(plane.begin(manifest)))
            PartsOnDisk(outlines).lay_out(folder)
            return Snapshot(manifest, {}, check), folder
        assert isinstance(plane, ShmPublisher), "all ranks see what they write into"
        slot = plane.begin(manifest)
        return Snapshot(manifest, slot.tensors, check), OpenSlot(plane.address, slot.generation)
