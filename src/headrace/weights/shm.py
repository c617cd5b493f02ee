"""Weights through memory that processes of one machine share: one copy in, one copy out.

Two slots, files in a folder that lies in memory, take turns, so that a reader has the time of a whole publication. A
slot begins with its generation: odd while it is written, even and larger once it is whole. That is written last, and
read before and after whatever is taken from the slot: a copy that was overtaken, or whose writer was killed, is not
taken for a version. Where processors see each other's writes in their order (x86) there is no checksum, since the bytes
leave no machine; elsewhere (ARM) one tells whether all had arrived that the generation says is there.

The layout, which names lie where, is that of the first version, and written once.
"""

from __future__ import annotations

import mmap
import os
import platform
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import torch

from headrace.weights import swap_check
from headrace.weights.manifest import build_manifest, from_json, named_once, require_newer, to_json
from headrace.weights.plane import (
    Manifest,
    Received,
    Snapshot,
    TensorEntry,
    WeightError,
    WeightOffer,
    WeightPublisher,
    WeightReceiver,
)
from headrace.weights.slot_format import LAYOUT, NONE, SLOTS, places, slot_name
from headrace.weights.swap_check import SwapCheck
from headrace.weights.version import Version

T = TypeVar("T")

IN_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")
"""Whether one processor sees another's writes in their order."""
_TRIES = 3
"""Of a reader that was overtaken."""


class _Slot:
    """One mapped file."""

    def __init__(self, path: Path, entries: Iterable[TensorEntry], *, create: bool = False) -> None:
        """Raises OSError."""
        found, size = places(entries)
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o600)
        try:
            if create:
                os.posix_fallocate(descriptor, 0, size)  # what is not there later would be a SIGBUS
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._numbers = memoryview(self._map)[:40].cast("q")
        self.tensors = {
            entry.name: torch.frombuffer(self._map, dtype=_dtype(entry), count=prod(entry.shape), offset=place).view(
                entry.shape
            )
            if prod(entry.shape)
            else torch.empty(entry.shape, dtype=_dtype(entry))
            for entry, place in found
        }

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

    @property
    def is_whole(self) -> bool:
        return self.generation > 0 and self.generation % 2 == 0


class ShmPublisher(WeightPublisher):
    """Copies each version into the slot that does not have the newest one."""

    transport = "shm"

    def __init__(self, folder: Path) -> None:
        """`folder`: empty, of this publisher alone, in memory; whoever made it removes it."""
        self._folder = folder
        self._manifest: Manifest | None = None
        self._slots: list[_Slot] = []
        self._published = 0

    @property
    def address(self) -> str:
        """What a receiver in any process of this machine is made of."""
        return str(self._folder)

    def snapshot(
        self, version: Version, tensors: Iterable[tuple[str, torch.Tensor]], check: SwapCheck | None = None
    ) -> Snapshot:
        """See `WeightPublisher.snapshot`: from the host's memory into the slot at once, from a device there first.
        Raises WeightError also if names, shapes or dtypes are not those of before."""
        require_newer(version, None if self._manifest is None else self._manifest.version)
        found = dict(named_once(version, tensors))
        manifest = build_manifest(version, found, checksums=False)
        if not self._slots:
            self._begin(manifest)
        elif self._manifest is not None and manifest.entries != self._manifest.entries:
            raise WeightError(f"cannot publish {version}: its tensors are not those of {self._manifest.version}")
        slot = self._slots[self._published % SLOTS]
        slot.generation = 2 * self._published + 1
        copies = dict(slot.tensors)
        for name, tensor in found.items():
            if tensor.device.type == "cpu":
                copies[name].copy_(tensor.detach())
            else:
                copies[name] = tensor.detach().clone()
        for device in dict.fromkeys(tensor.device for tensor in copies.values() if tensor.is_cuda):
            torch.cuda.current_stream(device).synchronize()
        return Snapshot(manifest, MappingProxyType(copies), check)

    def send(self, snapshot: Snapshot) -> Manifest:
        """See `WeightPublisher.send`."""
        slot = self._slots[self._published % SLOTS]
        for name, tensor in snapshot.tensors.items():
            if tensor is not slot.tensors[name]:
                slot.tensors[name].copy_(tensor)
        slot.version = snapshot.version
        slot.checksum = NONE if IN_ORDER else _checksum(slot.tensors.values())
        slot.has_check = snapshot.check is not None
        generation = 2 * (self._published + 1)
        self._write_check(generation, snapshot.check)
        self._published += 1
        slot.generation = generation
        self._manifest = snapshot.manifest
        return snapshot.manifest

    def receiver(self) -> ShmReceiver:
        return ShmReceiver(self.address)

    def _write_check(self, generation: int, check: SwapCheck | None) -> None:
        """In a file of its own, before the slot is said to be whole. That of the slot's last version goes."""
        try:
            _check_file(self._folder, generation - 2 * SLOTS).unlink(missing_ok=True)
            if check is not None:
                _check_file(self._folder, generation).write_bytes(swap_check.to_json(check))
        except OSError as error:
            raise WeightError(f"cannot publish in {self._folder}: {error}; make room there") from error

    def _begin(self, manifest: Manifest) -> None:
        try:
            for number in range(SLOTS):
                self._slots.append(_Slot(self._folder / slot_name(number), manifest.entries, create=True))
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
    slots: list[_Slot]


class ShmReceiver(WeightReceiver):
    """Reads what a `ShmPublisher`, perhaps of another process, has published."""

    def __init__(self, address: str) -> None:
        self._folder = Path(address)
        self._opened: _Opened | None = None

    def latest(self) -> Version | None:
        slot = self._newest()
        return None if slot is None else slot.version

    def offer(self) -> WeightOffer | None:
        for _ in range(_TRIES):
            slot = self._newest()
            if slot is None or self._opened is None:
                return None
            generation, version = slot.generation, slot.version
            check = self._check(slot, generation)
            if slot.generation == generation:
                manifest = replace(self._opened.layout, version=version)
                return WeightOffer(version, "shm", str(self._folder), manifest, check)
        raise self._overtaken()

    def receive(self) -> tuple[Manifest, Mapping[str, torch.Tensor]]:
        """See `WeightReceiver.receive`. The tensors are a copy."""
        received = self.received()
        return received.manifest, received.tensors

    def received(self) -> Received:
        """See `WeightReceiver.received`."""
        if self._newest() is None or self._opened is None:
            raise self._nothing()
        into = {name: torch.empty_like(tensor) for name, tensor in self._opened.slots[0].tensors.items()}
        manifest, check = self._receive_into(into)
        return Received(manifest, MappingProxyType(into), lasts=True, check=check)

    def receive_as(self, make: Callable[[Received], T]) -> T:
        """See `WeightReceiver.receive_as`: from the slot itself."""
        if not IN_ORDER:  # what is made of it has no checksum
            return super().receive_as(make)
        for _ in range(_TRIES):
            slot = self._newest()
            if slot is None or self._opened is None:
                raise self._nothing()
            generation, manifest = slot.generation, replace(self._opened.layout, version=slot.version)
            check = self._check(slot, generation)
            if slot.generation != generation:
                continue
            try:
                made = make(Received(manifest, MappingProxyType(slot.tensors), lasts=False, check=check))
            except WeightError:
                if slot.generation == generation:
                    raise
                continue  # it was of two versions
            if slot.generation == generation:
                return made
        raise self._overtaken()

    def receive_into(self, tensors: Mapping[str, torch.Tensor]) -> Manifest:
        """The newest whole version, copied into `tensors`, on whatever device they are. Their contents are those of
        one version only once this returns. Raises WeightError if one is missing or of another shape or dtype."""
        return self._receive_into(tensors)[0]

    def _receive_into(self, tensors: Mapping[str, torch.Tensor]) -> tuple[Manifest, SwapCheck | None]:
        for _ in range(_TRIES):
            slot = self._newest()
            if slot is None or self._opened is None:
                raise self._nothing()
            generation, version = slot.generation, slot.version
            for name, view in slot.tensors.items():
                _check(name, view, tensors)
                tensors[name].copy_(view)
            check = self._check(slot, generation)
            told = slot.checksum
            arrived = told == NONE or told == _checksum(tensors[name] for name in slot.tensors)
            if arrived and slot.generation == generation and slot.is_whole:
                return replace(self._opened.layout, version=version), check
        raise self._overtaken()

    def _newest(self) -> _Slot | None:
        if self._opened is None:
            self._opened = self._open()
        whole = [] if self._opened is None else [slot for slot in self._opened.slots if slot.is_whole]
        return max(whole, key=lambda slot: slot.generation, default=None)

    def _open(self) -> _Opened | None:
        layout = self._folder / LAYOUT
        try:
            manifest = from_json(layout.read_bytes(), str(layout))
            return _Opened(
                manifest, [_Slot(self._folder / slot_name(number), manifest.entries) for number in range(SLOTS)]
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise WeightError(f"{self._folder} cannot be read: {error}; start the publisher again") from error

    def _check(self, slot: _Slot, generation: int) -> SwapCheck | None:
        """Of the slot as it is of this generation: who asks looks afterwards whether it still is."""
        if not slot.has_check:
            return None
        try:
            return swap_check.from_json(_check_file(self._folder, generation).read_bytes())
        except (OSError, ValueError) as error:
            if slot.generation != generation:
                return None  # overtaken
            raise WeightError(f"the swap check of {slot.version} cannot be read: {error}; publish again") from error

    def _overtaken(self) -> WeightError:
        return WeightError(
            f"weights in {self._folder} were published {_TRIES} times while they were copied; publish less often"
        )

    def _nothing(self) -> WeightError:
        return WeightError(f"no weights were published in {self._folder} yet; publish the initial version first")


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


def _check_file(folder: Path, generation: int) -> Path:
    return folder / f"check-{generation}.json"


def _dtype(entry: TensorEntry) -> torch.dtype:
    """Raises WeightError for a name that is no dtype."""
    found = getattr(torch, entry.dtype, None)
    if not isinstance(found, torch.dtype):
        raise WeightError(f"{entry.name!r} has the dtype {entry.dtype[:40]!r}, which torch does not know")
    return found
