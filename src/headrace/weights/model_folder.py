"""A version as a model's folder, which a server reads as it reads any. Without torch."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import tempfile
import zlib
from pathlib import Path

from headrace.config.values.dtypes import SAFETENSORS_NAMES
from headrace.weights.by_expert import by_expert
from headrace.weights.plane import Manifest, TensorEntry, WeightError, WeightOffer
from headrace.weights.slot_format import NONE, numbers_of, places, slot_of
from headrace.weights.version import Version

MADE = "models"
"""The folder of those that are made, beside the slots."""
_KEPT = 2
_FILE = "model.safetensors"
_MAKING = "making-"
_HEADER_ALIGNED = 64


def model_folder(offer: WeightOffer) -> Path:
    """The folder of the offer's version. Of `disk` that is the publication itself. Of `shm` it is made beside the
    publication, by one copy, by whoever asks first; it goes with the publication, and once two newer ones were made.
    Blocking. Raises WeightError."""
    version, folder = offer.version, Path(offer.address)
    name = f"{version.branch}-{version.number}"
    match offer.transport:
        case "disk":
            return folder / name
        case "shm" if offer.manifest is not None:
            made = folder / MADE / name
            try:
                if not made.is_dir():
                    _make(folder, version, offer.manifest, made)
            except OSError as error:
                raise WeightError(f"{version} cannot be copied to {made}: {error}; make room there") from error
            return made
    raise WeightError(f"weights come by {offer.transport!r}, and a server takes them by shm and disk alone")


def _make(folder: Path, version: Version, manifest: Manifest, made: Path) -> None:
    made.parent.mkdir(exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=_MAKING, dir=made.parent))
    try:
        with slot_of(folder, version) as slot:
            _write(making / _FILE, slot, manifest)
        try:
            making.rename(made)
        except OSError:
            if not made.is_dir():  # else somebody else was faster
                raise
    finally:
        shutil.rmtree(making, ignore_errors=True)
    finished = [path for path in made.parent.iterdir() if not path.name.startswith(_MAKING)]
    for stale in sorted(finished, key=_version_of)[:-_KEPT]:
        shutil.rmtree(stale, ignore_errors=True)


def _version_of(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in path.name.split("-"))


def _write(path: Path, slot: mmap.mmap, manifest: Manifest) -> None:
    found, _ = places(manifest.entries)
    header = _header(manifest.entries)
    told, checksum = numbers_of(slot)[3], 0
    with memoryview(slot) as whole, path.open("xb", buffering=0) as file:
        _write_all(file.fileno(), memoryview(header))
        for entry, place in found:
            part = whole[place : place + entry.size]
            if told != NONE:
                checksum = zlib.crc32(part, checksum)
            _write_all(file.fileno(), part)
    if told not in (NONE, checksum):
        raise WeightError(f"{manifest.version} had not arrived whole where it was copied")


def _header(entries: tuple[TensorEntry, ...]) -> bytes:
    told, end = {}, 0
    for entry in (part for whole in entries for part in by_expert(whole)):
        if entry.dtype not in SAFETENSORS_NAMES:
            raise WeightError(f"{entry.name!r} has the dtype {entry.dtype!r}, which safetensors has no name for")
        told[entry.name] = {
            "dtype": SAFETENSORS_NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [end, end + entry.size],
        }
        end += entry.size
    text = json.dumps(told).encode()
    text += b" " * (-(8 + len(text)) % _HEADER_ALIGNED)
    return len(text).to_bytes(8, "little") + text


def _write_all(descriptor: int, part: memoryview) -> None:
    while len(part):
        part = part[os.write(descriptor, part) :]
