"""Safetensors files that several processes write together: each writes the parts of tensors that it has, in their
place. Nobody needs a whole tensor, and nobody waits for anybody."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from headrace.config.values.dtypes import SAFETENSORS_NAMES, dtype_name

_ALIGNMENT = 8
AT_ONCE = 1 << 26
"""Bytes that are converted at once."""

Box = tuple[str, tuple[int, ...], Tensor]
"""Part of a parameter: its name, where the part begins in it, and the part."""


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor of the files, which is a box of a parameter."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    parameter: str
    begin: tuple[int, ...]
    """Where the box begins in the parameter."""
    box: tuple[int, ...]
    """Its lengths there: `shape`, but for lengths of 1."""

    @classmethod
    def of_whole(cls, name: str, shape: Sequence[int], dtype: torch.dtype) -> FileTensor:
        lengths = tuple(shape)
        return cls(name, lengths, dtype, name, (0,) * len(lengths), lengths)

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class _Place:
    tensor: FileTensor
    file: str
    offset: int


class PartedFiles:
    """One file, or several with an index that says which tensor is where. All processes make the same of the same
    tensors."""

    def __init__(
        self,
        tensors: Sequence[FileTensor],
        name: str,
        *,
        limit: int | None = None,
        metadata: Mapping[str, str] = MappingProxyType({"format": "pt"}),
    ) -> None:
        """`name`: of the file, if it is one. `limit`: bytes of tensors in each, where one tensor does not have more.
        `metadata`: of each file."""
        self._metadata = dict(metadata)
        self._headers: dict[str, bytes] = {}
        self._ends: dict[str, int] = {}
        self._of: dict[str, list[_Place]] = {}
        """By parameter."""
        self._index: bytes | None = None
        self._index_name = f"{name}.index.json"
        self.size = sum(tensor.size for tensor in tensors)
        """Bytes of all tensors."""
        shares = _shares(tensors, limit)
        stem, suffix = os.path.splitext(name)
        files = [f"{stem}-{n:05d}-of-{len(shares):05d}{suffix}" for n in range(1, len(shares) + 1)]
        for file, share in zip(files if len(shares) > 1 else [name], shares, strict=True):
            self._lay_out(file, share)
        if len(shares) > 1:
            where = {tensor.name: file for file, share in zip(files, shares, strict=True) for tensor in share}
            told = {"metadata": {"total_size": self.size}, "weight_map": dict(sorted(where.items()))}
            self._index = (json.dumps(told, indent=2) + "\n").encode()

    def write(self, folder: Path, boxes: Iterable[Box]) -> int:
        """These parts, into their places in the files in `folder`, which is there. How many bytes that were. Raises
        OSError."""
        written = 0
        with ExitStack() as stack:
            opened: dict[str, int] = {}
            for parameter, begin, tensor in boxes:
                for place in self._of.get(parameter, ()):
                    common = common_box(begin, tensor.shape, place.tensor.begin, place.tensor.box)
                    if common is None:
                        continue
                    if place.file not in opened:
                        opened[place.file] = stack.enter_context(_Descriptor(folder / place.file)).number
                    own = tensor[tuple(slice(a - b, e - b) for (a, e), b in zip(common, begin, strict=True))]
                    at = [a - b for (a, _), b in zip(common, place.tensor.begin, strict=True)]
                    written += _write(opened[place.file], place, at, own)
        return written

    def finish(self, folder: Path) -> None:
        """All but the tensors; by one process, whenever it wants to. Raises OSError."""
        for file, header in self._headers.items():
            with _Descriptor(folder / file) as opened:
                _write_all(opened.number, memoryview(header), 0)
                os.ftruncate(opened.number, self._ends[file])
        if self._index is not None:
            (folder / self._index_name).write_bytes(self._index)

    def _lay_out(self, file: str, tensors: Sequence[FileTensor]) -> None:
        told: dict[str, object] = {"__metadata__": self._metadata}
        end, offsets = 0, []
        ordered = sorted(tensors, key=lambda tensor: -tensor.dtype.itemsize)  # each is aligned
        for tensor in ordered:
            offsets.append(end)
            span = [end, end + tensor.size]
            told[tensor.name] = {
                "dtype": SAFETENSORS_NAMES[dtype_name(tensor.dtype)],
                "shape": list(tensor.shape),
                "data_offsets": span,
            }
            end += tensor.size
        text = json.dumps(told).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        header = len(text).to_bytes(8, "little") + text
        self._headers[file], self._ends[file] = header, len(header) + end
        for tensor, offset in zip(ordered, offsets, strict=True):
            self._of.setdefault(tensor.parameter, []).append(_Place(tensor, file, len(header) + offset))


class _Descriptor:
    """A file that others may have begun; nothing of it is cut off."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> _Descriptor:
        self.number = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.number)


def tensors_of(shapes: Mapping[str, Sequence[int]], dtype: torch.dtype) -> list[FileTensor]:
    """Each parameter as it is."""
    return [FileTensor.of_whole(name, shape, dtype) for name, shape in shapes.items()]


def _shares(tensors: Sequence[FileTensor], limit: int | None) -> list[list[FileTensor]]:
    shares: list[list[FileTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if limit is not None and shares[-1] and size + tensor.size > limit:
            shares.append([])
            size = 0
        shares[-1].append(tensor)
        size += tensor.size
    return shares


def common_box(
    begin: Sequence[int], shape: Sequence[int], other: Sequence[int], lengths: Sequence[int]
) -> list[tuple[int, int]] | None:
    """From where to where two boxes have all in common, in each dimension; None where they have nothing."""
    found = [(max(a, b), min(a + n, b + m)) for a, n, b, m in zip(begin, shape, other, lengths, strict=True)]
    return None if any(start >= end for start, end in found) else found


def _write(descriptor: int, place: _Place, begin: Sequence[int], part: Tensor) -> int:
    """`part`, which begins at `begin` in the stored box, a block after the other."""
    return sum(
        _write_block(descriptor, place, [begin[0] + first, *begin[1:]] if begin else [], block)
        for first, block in _blocks(part, place.tensor.dtype.itemsize)
    )


def _write_block(descriptor: int, place: _Place, begin: Sequence[int], block: Tensor) -> int:
    """The runs of numbers that follow each other in the file."""
    dtype, lengths = place.tensor.dtype, place.tensor.box
    strides = [prod(lengths[dim + 1 :]) * dtype.itemsize for dim in range(len(lengths))]
    numbers: Any = block.to("cpu", dtype).contiguous().reshape(-1).view(torch.uint8).numpy()
    data = memoryview(numbers)
    inner = max(len(lengths) - 1, 0)
    while inner > 0 and block.shape[inner] == lengths[inner]:
        inner -= 1
    outer = block.shape[:inner]
    run = data.nbytes // max(prod(outer), 1)
    first = place.offset + sum(each * stride for each, stride in zip(begin, strides, strict=True))
    for number, index in enumerate(product(*map(range, outer))):
        offset = sum(each * stride for each, stride in zip(index, strides, strict=False))
        _write_all(descriptor, data[number * run : (number + 1) * run], first + offset)
    return data.nbytes


def _blocks(part: Tensor, itemsize: int) -> Iterator[tuple[int, Tensor]]:
    """Rows of it, `AT_ONCE` bytes or a row, each with the number of the first."""
    if not part.dim():
        yield 0, part
        return
    rows = max(1, AT_ONCE // max(1, part[0].numel() * itemsize))
    for first in range(0, len(part), rows):
        yield first, part[first : first + rows]


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while len(data):
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count
