"""A version of the weights, where Headrace has published it.

`shm`: a folder in memory with `layout.json`, the manifest of the first version, and two files `slot-0` and `slot-1`. A
slot begins with five numbers of 8 bytes: generation (odd while it is written), branch, number, checksum of all tensors
(-1: none), and whether there is a swap check. Tensors begin at byte 4096, in the manifest's order, each at a multiple
of 64.
`disk`: a folder with one folder `BRANCH-NUMBER` a version, of `manifest.json` and `weights.safetensors`.
Checksums are CRC-32 of the bytes.
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

_SLOTS, _HEADER, _ALIGNED, _NONE = 2, 4096, 64, -1
Entry = Mapping[str, Any]
"""Of a manifest: a tensor's `name`, `shape`, `dtype`, and its `checksum` or None."""


class PublicationError(RuntimeError):
    """It is not there, not whole, or was overtaken."""


@dataclass(frozen=True)
class Publication:
    tensors: Mapping[str, torch.Tensor]
    """Of the host's memory; nobody may write into them."""
    stands: Callable[[], bool]
    """Whether they are still of the version: to be asked after they were read."""


def opened(transport: str, address: str, branch: int, number: int, *, rank: int = 0, ranks: int = 1) -> Publication:
    """What is there has the checksums that the publisher made. Those of tensors, the processes that take a version
    together share out. Raises PublicationError."""
    try:
        match transport:
            case "shm":
                return _shared(Path(address), branch, number)
            case "disk":
                return _stored(Path(address), branch, number, rank, ranks)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise PublicationError(f"version {branch}.{number} cannot be read at {address}: {error!r}") from error
    raise PublicationError(f"weights come by {transport!r}, and by shm, disk and gloo alone they can reach vLLM")


def size_of(entries: Sequence[Entry]) -> int:
    """Bytes of a slot behind its header."""
    return sum(-(-prod(each["shape"]) * _dtype(each).itemsize // _ALIGNED) * _ALIGNED for each in entries)


def tensors_in(data: torch.Tensor, entries: Sequence[Entry]) -> dict[str, torch.Tensor]:
    """By name. `data`: uint8, what a slot has behind its header."""
    found, end = {}, 0
    for entry in entries:
        dtype = _dtype(entry)
        size = prod(entry["shape"]) * dtype.itemsize
        found[entry["name"]] = data[end : end + size].view(dtype).view(entry["shape"])
        end += -(-size // _ALIGNED) * _ALIGNED
    return found


def _shared(folder: Path, branch: int, number: int) -> Publication:
    entries = json.loads((folder / "layout.json").read_bytes())["entries"]
    held: list[str] = []
    for slot in range(_SLOTS):
        descriptor = os.open(folder / f"slot-{slot}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
        finally:
            os.close(descriptor)
        numbers = memoryview(mapped)[:32].cast("q")
        generation, *version, told = numbers
        if generation > 0 and generation % 2 == 0 and version == [branch, number]:
            tensors = tensors_in(torch.frombuffer(mapped, dtype=torch.uint8)[_HEADER:], entries)
            if told != _NONE and told != _checksum(tensors.values()):
                raise PublicationError(f"version {branch}.{number} is not whole at {folder}: its checksum differs")
            return Publication(tensors, partial(_begins_with, numbers, generation))
        held.append(f"{version[0]}.{version[1]}{' (being written)' if generation % 2 else ''}")
    raise PublicationError(f"version {branch}.{number} is not at {folder}: there are {', '.join(held)}")


def _begins_with(numbers: memoryview, generation: int) -> bool:
    return bool(numbers[0] == generation)


def _stored(address: Path, branch: int, number: int, rank: int, ranks: int) -> Publication:
    folder = address / f"{branch}-{number}"
    manifest = json.loads((folder / "manifest.json").read_bytes())
    if manifest["version"] != [branch, number]:
        raise PublicationError(f"{folder} is of version {manifest['version']}, and not {branch}.{number}")
    tensors, entries = load_file(folder / "weights.safetensors"), manifest["entries"]
    if odd := tensors.keys() ^ {entry["name"] for entry in entries}:
        raise PublicationError(f"{folder} has {min(odd)!r} in its manifest or in its tensors alone")
    for place, entry in enumerate(entries):
        tensor = tensors[entry["name"]]
        if (list(tensor.shape), tensor.dtype) != (entry["shape"], _dtype(entry)):
            raise PublicationError(
                f"{folder}: {entry['name']!r} is {tensor.dtype}{list(tensor.shape)}, and was published as "
                f"{entry['dtype']}{entry['shape']}"
            )
        if place % ranks == rank and entry["checksum"] not in (None, _checksum([tensor])):
            raise PublicationError(f"{folder}: {entry['name']!r} is damaged: its checksum differs")
    return Publication(tensors, folder.is_dir)


def _checksum(tensors: Iterable[torch.Tensor]) -> int:
    """Of the bytes of all, one after another."""
    found = 0
    for tensor in tensors:
        found = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, found)
    return found


def _dtype(entry: Entry) -> torch.dtype:
    """Raises PublicationError for a name that is none."""
    found = getattr(torch, entry["dtype"], None)
    if not isinstance(found, torch.dtype):
        raise PublicationError(f"{entry['name']!r} has the dtype {entry['dtype']!r}, which torch does not know")
    return found
