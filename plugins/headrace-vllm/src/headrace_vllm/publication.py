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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

_SLOTS, _HEADER, _ALIGNED = 2, 4096, 64


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
                raise PublicationError(f"weights come by {transport!r}, and by shm and disk alone they can reach vLLM")
    except OSError as error:
        raise PublicationError(f"version {branch}.{number} cannot be read at {address}: {error}") from error


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

            yield Publication(_views(mapped, entries), stands)
            return
        held.append(f"{version[0]}.{version[1]}{' (being written)' if generation % 2 else ''}")
    raise PublicationError(f"version {branch}.{number} is not at {folder}: there are {', '.join(held)}")


def _views(mapped: mmap.mmap, entries: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    found, end = {}, _HEADER
    for entry in entries:
        shape, dtype = entry["shape"], getattr(torch, entry["dtype"])
        count = prod(shape)
        found[entry["name"]] = (
            torch.frombuffer(mapped, dtype=dtype, count=count, offset=end).view(shape)
            if count
            else torch.empty(shape, dtype=dtype)
        )
        end += -(-count * dtype.itemsize // _ALIGNED) * _ALIGNED
    return found


def _stored(folder: Path) -> Publication:
    from safetensors.torch import load_file

    return Publication(load_file(folder / "weights.safetensors"), lambda: folder.is_dir())
