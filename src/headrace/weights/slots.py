"""Weights through memory that processes of one machine share: one copy in, one copy out.

Two slots take turns, so that a reader has the time of a whole publication. Each has a file, in a folder that lies in
memory, which begins with the slot's generation: odd while it is written, even and larger once it is whole. That is
written last, and read before and after whatever is taken from the slot: a copy that was overtaken, or whose writer was
killed, is not taken for a version. Where the tensors are is what kinds of slot differ in: `shm.py`, `cuda_ipc.py`.

The layout, which names lie where, is that of the first version, and written once.
"""

from __future__ import annotations

import mmap
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, TypeVar

import torch

from headrace.runtime.progress import mark, rest, working
from headrace.weights import swap_check
from headrace.weights.copies import copy_each
from headrace.weights.manifest import build_manifest, from_json, named_once, require_newer, to_json
from headrace.weights.plane import (
    ALL,
    Manifest,
    Received,
    Share,
    Snapshot,
    TensorEntry,
    WeightError,
    WeightOffer,
    WeightPublisher,
    WeightReceiver,
)
from headrace.weights.slot_format import LAYOUT, NONE, SLOTS, check_file
from headrace.weights.swap_check import SwapCheck
from headrace.weights.version import Version

T = TypeVar("T")

_TRIES = 3
"""Of a reader that was overtaken."""


def mapped_file(path: Path, size: int, *, create: bool) -> mmap.mmap:
    """`size` bytes of a slot's file. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o600)
    try:
        if create:
            os.posix_fallocate(descriptor, 0, size)  # what is not there later would be a SIGBUS
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def tensors_in(memory: torch.Tensor, found: Iterable[tuple[TensorEntry, int]]) -> dict[str, torch.Tensor]:
    """Views of `memory`, bytes [n], by name: of each entry where it begins."""
    return {
        entry.name: memory[place : place + entry.size].view(_dtype(entry)).view(entry.shape)
        if prod(entry.shape)
        else torch.empty(entry.shape, dtype=_dtype(entry), device=memory.device)
        for entry, place in found
    }


class Slot:
    """One slot's file, and its tensors."""

    def __init__(self, file: mmap.mmap, memory: torch.Tensor, found: Iterable[tuple[TensorEntry, int]]) -> None:
        """`memory`: bytes [n], of the file itself or of a device. `found`: see `tensors_in`."""
        self._numbers = memoryview(file)[:40].cast("q")
        self.memory = memory
        self.tensors: Mapping[str, torch.Tensor] = tensors_in(memory, found)

    @property
    def generation(self) -> int:
        """Even if it is whole; 0 if it never was."""
        return self._numbers[0]

    @generation.setter
    def generation(self, value: int) -> None:
        self._numbers[0] = value

    @property
    def version(self) -> Version:
        return Version(self._numbers[1], self._numbers[2])

    @version.setter
    def version(self, value: Version) -> None:
        self._numbers[1], self._numbers[2] = value

    @property
    def checksum(self) -> int:
        """Of all tensors; `NONE` where there is no need of one."""
        return self._numbers[3]

    @checksum.setter
    def checksum(self, value: int) -> None:
        self._numbers[3] = value

    @property
    def has_check(self) -> bool:
        return bool(self._numbers[4])

    @has_check.setter
    def has_check(self, value: bool) -> None:
        self._numbers[4] = value

    def whole(self) -> WholeSlot | None:
        """It, if it has a version."""
        generation = self.generation  # once: the next moment it may be another
        return WholeSlot(self, generation, self.version) if generation > 0 and generation % 2 == 0 else None


@dataclass(frozen=True, slots=True)
class WholeSlot:
    """A slot that was whole when its generation was read. What was taken from it is of this version only if it `stands`
    afterwards."""

    slot: Slot
    generation: int
    version: Version

    def stands(self) -> bool:
        return self.slot.generation == self.generation


class SlotPublisher(WeightPublisher, ABC):
    """Copies each version into the slot that does not have the newest one."""

    checks_arrival: ClassVar[bool]
    """Whether a version goes with a checksum, by which a reader knows that all of it has arrived."""

    def __init__(self, folder: Path) -> None:
        """`folder`: empty, of this publisher alone, in memory; whoever made it removes it."""
        self._folder = folder
        self._manifest: Manifest | None = None
        self._slots: list[Slot] = []
        self._published = 0

    @property
    def address(self) -> str:
        """What a receiver in any process of this machine is made of."""
        return str(self._folder)

    def snapshot(
        self, version: Version, tensors: Iterable[tuple[str, torch.Tensor]], check: SwapCheck | None = None
    ) -> Snapshot:
        """See `WeightPublisher.snapshot`: into the slot at once, or from a device to itself first where the slot is in
        the host's memory. Raises WeightError also if names, shapes or dtypes are not those of before."""
        require_newer(version, None if self._manifest is None else self._manifest.version)
        found = dict(named_once(version, tensors))
        manifest = build_manifest(version, found, checksums=False)
        copies = dict(self.begin(manifest).tensors)
        for name, tensor in found.items():
            if tensor.is_cuda and not copies[name].is_cuda:
                copies[name] = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        with working("chunk"):
            copy_each((copies[name], tensor) for name, tensor in found.items())
            settle(copies.values())
        return Snapshot(manifest, MappingProxyType(copies), check)

    def send(self, snapshot: Snapshot) -> Manifest:
        """See `WeightPublisher.send`."""
        slot = self._slots[self._published % SLOTS]
        for name, tensor in snapshot.tensors.items():
            if tensor is not slot.tensors[name]:
                mark("chunk")
                slot.tensors[name].copy_(tensor)
        rest()
        self.end(snapshot.manifest, snapshot.check)
        return snapshot.manifest

    def begin(self, manifest: Manifest) -> Slot:
        """For whoever writes a version's bytes as they come: the slot that does not have the newest version, of which
        nobody takes anything until `end`. Raises WeightError, as `snapshot`."""
        version = manifest.version
        require_newer(version, None if self._manifest is None else self._manifest.version)
        if not self._slots:
            self._make(manifest)
        elif self._manifest is not None and manifest.entries != self._manifest.entries:
            raise WeightError(f"cannot publish {version}: its tensors are not those of {self._manifest.version}")
        slot = self._slots[self._published % SLOTS]
        slot.generation = 2 * self._published + 1
        return slot

    def end(self, manifest: Manifest, check: SwapCheck | None) -> None:
        """What `begin` gave is whole. Raises WeightError."""
        slot = self._slots[self._published % SLOTS]
        slot.version = manifest.version
        slot.checksum = _checksum(slot.tensors.values()) if self.checks_arrival else NONE
        slot.has_check = check is not None
        generation = 2 * (self._published + 1)
        self._write_check(generation, check)
        self._published += 1
        slot.generation = generation
        self._manifest = manifest

    def whole(self, version: Version) -> Slot | None:
        """The slot that has it."""
        found = (slot.whole() for slot in self._slots)
        return next((each.slot for each in found if each is not None and each.version == version), None)

    @abstractmethod
    def receiver(self) -> SlotReceiver: ...

    @abstractmethod
    def _made(self, manifest: Manifest) -> Sequence[Slot]:
        """New ones in the folder. Raises OSError, WeightError."""

    def _write_check(self, generation: int, check: SwapCheck | None) -> None:
        """In a file of its own, before the slot is said to be whole. That of the slot's last version goes."""
        try:
            check_file(self._folder, generation - 2 * SLOTS).unlink(missing_ok=True)
            if check is not None:
                check_file(self._folder, generation).write_bytes(swap_check.to_json(check))
        except OSError as error:
            raise WeightError(f"cannot publish in {self._folder}: {error}; make room there") from error

    def _make(self, manifest: Manifest) -> None:
        try:
            self._slots = list(self._made(manifest))
            making = self._folder / f"{LAYOUT}.new"
            making.write_bytes(to_json(manifest))
            making.rename(self._folder / LAYOUT)
        except OSError as error:
            self._slots = []
            raise WeightError(
                f"cannot publish {manifest.version} in {self._folder}: {error}; make room there"
            ) from error


@dataclass(slots=True)
class _Opened:
    layout: Manifest
    slots: Sequence[Slot]


class SlotReceiver(WeightReceiver, ABC):
    """Reads what a `SlotPublisher`, perhaps of another process, has published."""

    transport: ClassVar[str]
    reads_in_place: ClassVar[bool]
    """Whether what is made of a slot itself is known to be of one version, without a checksum."""

    def __init__(self, address: str) -> None:
        self._folder = Path(address)
        self._opened: _Opened | None = None

    @abstractmethod
    def _found(self, manifest: Manifest) -> Sequence[Slot]:
        """Those in the folder. Raises OSError, ValueError, WeightError."""

    def latest(self) -> Version | None:
        for _ in range(_TRIES):
            newest = self._newest()
            if newest is None:
                return None
            if newest[1].stands():
                return newest[1].version
        raise self._overtaken()

    def whole(self) -> list[WholeSlot]:
        """Those that have a version, the newest one first."""
        if self._opened is None:
            self._opened = self._open()
        found = [slot.whole() for slot in self._opened.slots] if self._opened is not None else []
        return sorted(filter(None, found), key=lambda each: each.generation, reverse=True)

    def offer(self) -> WeightOffer | None:
        for _ in range(_TRIES):
            newest = self._newest()
            if newest is None:
                return None
            layout, whole = newest
            check = self._check(whole)
            if whole.stands():
                manifest = replace(layout, version=whole.version)
                return WeightOffer(whole.version, self.transport, str(self._folder), manifest, check)
        raise self._overtaken()

    def receive(self) -> tuple[Manifest, Mapping[str, torch.Tensor]]:
        """See `WeightReceiver.receive`. The tensors are a copy."""
        received = self.received()
        return received.manifest, received.tensors

    def received(self) -> Received:
        """See `WeightReceiver.received`."""
        newest = self._newest()
        if newest is None:
            raise self._nothing()
        into = {name: torch.empty_like(tensor) for name, tensor in newest[1].slot.tensors.items()}
        manifest, check = self._receive_into(into)
        return Received(manifest, MappingProxyType(into), lasts=True, check=check)

    def receive_as(self, make: Callable[[Received], T], share: Share = ALL) -> T:
        """See `WeightReceiver.receive_as`: from the slot itself."""
        if not self.reads_in_place:
            return super().receive_as(make, share)
        for _ in range(_TRIES):
            newest = self._newest()
            if newest is None:
                raise self._nothing()
            layout, whole = newest
            manifest, tensors = replace(layout, version=whole.version), whole.slot.tensors
            check = self._check(whole)
            if not whole.stands():
                continue
            try:
                made = make(Received(manifest, MappingProxyType(tensors), lasts=False, check=check))
            except WeightError:
                if whole.stands():
                    raise
                continue  # it was of two versions
            settle(tensors.values())
            if whole.stands():
                return made
        raise self._overtaken()

    def receive_into(self, tensors: Mapping[str, torch.Tensor]) -> Manifest:
        """The newest whole version, copied into `tensors`, on whatever device they are. Their contents are those of
        one version only once this returns. Raises WeightError if one is missing or of another shape or dtype."""
        return self._receive_into(tensors)[0]

    def _receive_into(self, tensors: Mapping[str, torch.Tensor]) -> tuple[Manifest, SwapCheck | None]:
        for _ in range(_TRIES):
            newest = self._newest()
            if newest is None:
                raise self._nothing()
            layout, whole = newest
            slot = whole.slot
            for name, view in slot.tensors.items():
                _check(name, view, tensors)
            with working("chunk"):
                copy_each((tensors[name], view) for name, view in slot.tensors.items())
                settle((*slot.tensors.values(), *tensors.values()))
            check = self._check(whole)
            told = slot.checksum
            arrived = told == NONE or told == _checksum(tensors[name] for name in slot.tensors)
            if arrived and whole.stands():
                return replace(layout, version=whole.version), check
        raise self._overtaken()

    def _newest(self) -> tuple[Manifest, WholeSlot] | None:
        """And the layout of its version."""
        found = self.whole()
        return (self._opened.layout, found[0]) if found and self._opened is not None else None

    def _open(self) -> _Opened | None:
        layout = self._folder / LAYOUT
        try:
            manifest = from_json(layout.read_bytes(), str(layout))
            return _Opened(manifest, self._found(manifest))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise WeightError(f"{self._folder} cannot be read: {error}; start the publisher again") from error

    def _check(self, whole: WholeSlot) -> SwapCheck | None:
        """None also where it does not stand any more: who asks looks afterwards whether it does."""
        if not whole.slot.has_check:
            return None
        try:
            return swap_check.from_json(check_file(self._folder, whole.generation).read_bytes())
        except (OSError, ValueError) as error:
            if not whole.stands():
                return None  # overtaken
            raise WeightError(f"the swap check of {whole.version} cannot be read: {error}; publish again") from error

    def _overtaken(self) -> WeightError:
        return WeightError(
            f"weights in {self._folder} were published {_TRIES} times while they were copied; publish less often"
        )

    def _nothing(self) -> WeightError:
        return WeightError(f"no weights were published in {self._folder} yet; publish the initial version first")


def settle(tensors: Iterable[torch.Tensor]) -> None:
    """Wait for what this thread has started on the devices where they are."""
    for device in dict.fromkeys(tensor.device for tensor in tensors if tensor.is_cuda):
        torch.cuda.current_stream(device).synchronize()


def _check(name: str, view: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> None:
    own = tensors.get(name)
    if own is None or own.shape != view.shape or own.dtype != view.dtype:
        has = "none of that name" if own is None else f"{own.dtype}{list(own.shape)}"
        raise WeightError(f"{name!r} is published as {view.dtype}{list(view.shape)}, and the receiver has {has}")


def _checksum(tensors: Iterable[torch.Tensor]) -> int:
    """CRC-32 of the bytes of all, one after another."""
    found = 0
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        found = zlib.crc32(flat.view(torch.uint8).numpy().data, found)
    return found


def _dtype(entry: TensorEntry) -> torch.dtype:
    """Raises WeightError for a name that is no dtype."""
    found = getattr(torch, entry.dtype, None)
    if not isinstance(found, torch.dtype):
        raise WeightError(f"{entry.name!r} has the dtype {entry.dtype[:40]!r}, which torch does not know")
    return found
