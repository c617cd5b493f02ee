"""A version of the weights, where Headrace has published it.

`shm`: a folder in memory with `layout.json`, the manifest of the first version, and two files `slot-0` and `slot-1`. A
slot begins with five numbers of 8 bytes: generation (odd while it is written), branch, number, checksum, and whether
there is a swap check. Tensors begin at byte 4096, in the manifest's order, each at a multiple of 64.
`disk`: a folder with one folder `BRANCH-NUMBER` a version, of `manifest.json` and `weights.safetensors`.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

_SLOTS, _HEADER, _ALIGNED = 2, 4096, 64
Entry = Mapping[str, Any]
"""Of a manifest: a tensor's `name`, `shape` and `dtype`."""


class PublicationError(RuntimeError):
    """It is not there, not whole, or was overtaken."""


@dataclass(frozen=True)
class Publication:
    tensors: Mapping[str, torch.Tensor]
    """Of the host's memory; nobody may write into them."""
    stands: Callable[[], bool]
    """Whether they are still of the version: to be asked after they were read."""


@contextmanager
def opened(transport: str, address: str, branch: int, number: int) -> Iterator[Publication]:
    """Raises PublicationError."""
    try:
        match transport:
            case "shm":
                with _shared(Path(address), branch, number) as found:
                    yield found
            case "disk":
                yield _stored(Path(address) / f"{branch}-{number}")
            case _:
                raise PublicationError(
                    f"weights come by {transport!r}, and by shm, disk and gloo alone they can reach vLLM"
                )
    except OSError as error:
        raise PublicationError(f"version {branch}.{number} cannot be read at {address}: {error}") from error


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


@contextmanager
def _shared(folder: Path, branch: int, number: int) -> Iterator[Publication]:
    entries = json.loads((folder / "layout.json").read_bytes())["entries"]
    held: list[str] = []
    for slot in range(_SLOTS):
        descriptor = os.open(folder / f"slot-{slot}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
        finally:
            os.close(descriptor)
        numbers = memoryview(mapped)[:24].cast("q")
        generation, *version = numbers
        if generation > 0 and generation % 2 == 0 and version == [branch, number]:

            def stands(numbers: Any = numbers, generation: int = generation) -> bool:
                return bool(numbers[0] == generation)

            yield Publication(tensors_in(torch.frombuffer(mapped, dtype=torch.uint8)[_HEADER:], entries), stands)
            return
        held.append(f"{version[0]}.{version[1]}{' (being written)' if generation % 2 else ''}")
    raise PublicationError(f"version {branch}.{number} is not at {folder}: there are {', '.join(held)}")


def _dtype(entry: Entry) -> torch.dtype:
    """Raises PublicationError for a name that is none."""
    found = getattr(torch, entry["dtype"], None)
    if not isinstance(found, torch.dtype):
        raise PublicationError(f"{entry['name']!r} has the dtype {entry['dtype']!r}, which torch does not know")
    return found


def _stored(folder: Path) -> Publication:
    from safetensors.torch import load_file

    return Publication(load_file(folder / "weights.safetensors"), lambda: folder.is_dir())
