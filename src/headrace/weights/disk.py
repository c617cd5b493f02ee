"""Weights through a folder that both ends see: one subfolder for each version, and a pointer to the newest.

A version's folder appears by one rename, whole and flushed; then the pointer is replaced by another. A reader
therefore never sees a version in the making; a crash leaves at worst a folder that the next publication removes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from headrace.store.media.files import sync_path
from headrace.weights import swap_check
from headrace.weights.disk_format import CHECK, POINTER, name_of, pointed, version_of
from headrace.weights.manifest import build_manifest, checksum, from_json, named_once, require_newer, to_json, verify
from headrace.weights.plane import (
    ALL,
    Manifest,
    Received,
    Share,
    Snapshot,
    WeightError,
    WeightOffer,
    WeightPublisher,
    WeightReceiver,
)
from headrace.weights.swap_check import SwapCheck
from headrace.weights.version import Version

T = TypeVar("T")

TENSORS = "weights.safetensors"
_MANIFEST = "manifest.json"


class DiskPublisher(WeightPublisher):
    """Writes each version as safetensors, and removes all but the newest `keep`.

    With `keep` of 2, a receiver has the time of one whole publication to open what the pointer named.
    """

    transport = "disk"

    def __init__(self, folder: str | Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; the newest version at least must be kept")
        self._folder = Path(folder)
        self._keep = keep
        self._begun: Manifest | None = None

    def snapshot(
        self, version: Version, tensors: Iterable[tuple[str, torch.Tensor]], check: SwapCheck | None = None
    ) -> Snapshot:
        """See `WeightPublisher.snapshot`. The last version is read from the folder, so a trainer that a restore left
        behind is refused."""
        require_newer(version, pointed(self._folder))
        copies = {name: tensor.detach().clone() for name, tensor in named_once(version, tensors)}
        return Snapshot(build_manifest(version, copies, checksums=False), MappingProxyType(copies), check)

    def begin(self, manifest: Manifest) -> Path:
        """For whoever writes a version's tensors, as they come, into the file `TENSORS` of this folder, which nobody
        takes for a version until it is sent. Raises WeightError, as `snapshot`."""
        require_newer(manifest.version, pointed(self._folder))
        try:
            making = self._empty(manifest.version)
        except OSError as error:
            raise self._cannot(manifest.version, error) from error
        self._begun = manifest
        return making

    def send(self, snapshot: Snapshot) -> Manifest:
        """See `WeightPublisher.send`: the snapshot's tensors, or those that were written since `begin`."""
        version = snapshot.version
        require_newer(version, pointed(self._folder))
        making, made = self._making(version), self._folder / name_of(version)
        begun, self._begun = self._begun, None
        try:
            if snapshot.manifest is begun:
                manifest = _told(making, begun)
            else:
                manifest = _write(self._empty(version), version, dict(_storable(snapshot.tensors.items())))
            if snapshot.check is not None:
                (making / CHECK).write_bytes(swap_check.to_json(snapshot.check))
                sync_path(making / CHECK)
            (making / _MANIFEST).write_bytes(to_json(manifest))
            for path in (making / TENSORS, making / _MANIFEST, making):
                sync_path(path)
            making.rename(made)
            sync_path(self._folder)
            self._point_to(version)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(making, ignore_errors=True)
            raise self._cannot(version, error) from error
        for _, stale in sorted(_versions(self._folder))[: -self._keep]:
            shutil.rmtree(stale, ignore_errors=True)
        return manifest

    @property
    def address(self) -> str:
        return str(self._folder)

    def receiver(self) -> DiskReceiver:
        return DiskReceiver(self._folder)

    def _making(self, version: Version) -> Path:
        return self._folder / f"making-{name_of(version)}"

    def _empty(self, version: Version) -> Path:
        """A new folder for a version in the making; what was left of others, and of this one, goes. Raises OSError."""
        making = self._making(version)
        self._folder.mkdir(parents=True, exist_ok=True)
        for leftover in (*self._folder.glob("making-*"), self._folder / name_of(version)):
            shutil.rmtree(leftover, ignore_errors=True)
        making.mkdir()
        return making

    def _cannot(self, version: Version, error: Exception) -> WeightError:
        return WeightError(f"cannot publish {version} in {self._folder}: {error}; make room there")

    def _point_to(self, version: Version) -> None:
        pointer = self._folder / f"{POINTER}.new"
        pointer.write_text(f"{name_of(version)}\n")
        sync_path(pointer)
        pointer.replace(self._folder / POINTER)
        sync_path(self._folder)


class DiskReceiver(WeightReceiver):
    """Reads the newest version in the folder of a publisher, perhaps of another process, to the CPU."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def latest(self) -> Version | None:
        return pointed(self._folder)

    def offer(self) -> WeightOffer | None:
        if self.latest() is None:
            return None
        manifest, check = self._again(self._told)
        return WeightOffer(manifest.version, "disk", str(self._folder), manifest, check)

    def receive(self) -> tuple[Manifest, Mapping[str, torch.Tensor]]:
        received = self.received()
        return received.manifest, received.tensors

    def received(self) -> Received:
        """See `WeightReceiver.received`."""
        return self._again(self._read)

    def receive_as(self, make: Callable[[Received], T], share: Share = ALL) -> T:
        """See `WeightReceiver.receive_as`: of the file no more is read than `make` does, and the share of the tensors
        whose checksums are made."""
        return make(self._again(lambda: self._read(share)))

    @staticmethod
    def _again(read: Callable[[], T]) -> T:
        try:
            return read()
        except _GoneError:  # pruned after the look at the pointer: newer versions were published meanwhile
            return read()

    def _told(self) -> tuple[Manifest, SwapCheck | None]:
        """What is told of the newest version beside its tensors."""
        version = self.latest()
        if version is None:
            raise WeightError(f"no weights were published in {self._folder} yet; publish the initial version first")
        folder = self._folder / name_of(version)
        manifest_file, check_file = folder / _MANIFEST, folder / CHECK
        try:
            manifest = from_json(manifest_file.read_bytes(), str(manifest_file))
            check = swap_check.from_json(check_file.read_bytes()) if check_file.is_file() else None
        except FileNotFoundError as error:
            raise _GoneError(f"{version} is not whole in {self._folder}: {error}; publish it again") from error
        except (OSError, ValueError) as error:
            raise WeightError(f"{folder} is damaged: {error}; publish a new version") from error
        if manifest.version != version:
            raise WeightError(f"{manifest_file} is of {manifest.version}, not {version}; publish a new version")
        return manifest, check

    def _read(self, share: Share = ALL) -> Received:
        """The file is mapped: what nobody looks at is not read."""
        manifest, check = self._told()
        tensors_file = self._folder / name_of(manifest.version) / TENSORS
        try:
            tensors = load_file(tensors_file)
        except FileNotFoundError as error:
            raise _GoneError(f"{manifest.version} is not whole in {self._folder}: {error}; publish it again") from error
        except (OSError, SafetensorError) as error:
            raise WeightError(f"{tensors_file} is damaged: {error}; publish a new version") from error
        verify(manifest, tensors, str(tensors_file), share)
        return Received(manifest, MappingProxyType(tensors), lasts=True, check=check)


class _GoneError(WeightError):
    """A file of the version that the pointer named is not there."""


def _storable(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """On the CPU, contiguous, each with its own storage, as the format wants: tied weights are repeated."""
    storages: set[int] = set()
    for name, tensor in tensors:
        stored = tensor.detach().cpu().contiguous()
        if stored.untyped_storage().data_ptr() in storages:
            stored = stored.clone()
        storages.add(stored.untyped_storage().data_ptr())
        yield name, stored


def _write(folder: Path, version: Version, tensors: dict[str, torch.Tensor]) -> Manifest:
    manifest = build_manifest(version, tensors)
    save_file(tensors, folder / TENSORS)
    return manifest


def _told(folder: Path, manifest: Manifest) -> Manifest:
    """With checksums of what others wrote there, which is read a tensor at a time."""
    with safe_open(folder / TENSORS, framework="pt") as file:
        sums = {entry.name: checksum(file.get_tensor(entry.name)) for entry in manifest.entries}
    return replace(manifest, entries=tuple(replace(each, checksum=sums[each.name]) for each in manifest.entries))


def _versions(folder: Path) -> Iterator[tuple[Version, Path]]:
    for path in folder.iterdir():
        if (version := version_of(path.name)) is not None:
            yield version, path
