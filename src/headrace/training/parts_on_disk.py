"""A version on disk that several ranks write into one file, each the parts of tensors that it has.

The publisher begins a folder, which nobody takes for a version; the first rank lays the file out there, all write into
it, and the publisher makes a version of it once these are all the bytes that there are. Nobody has more of it than its
own part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from headrace.models.parted_files import Box, FileTensor, PartedFiles
from headrace.weights.disk import TENSORS
from headrace.weights.parts import OpenSlot
from headrace.weights.plane import WeightError


@dataclass(frozen=True, slots=True)
class OpenFolder:
    """One in which a version is being written. Plain data."""

    path: str


Opened = OpenSlot | OpenFolder
"""What ranks write a version into together. Plain data."""


class PartsOnDisk:
    def __init__(self, outlines: Mapping[str, Tensor]) -> None:
        """Names, shapes and dtypes of all tensors."""
        told = [FileTensor.of_whole(name, outline.shape, outline.dtype) for name, outline in outlines.items()]
        self._files = PartedFiles(told, TENSORS)

    def lay_out(self, opened: OpenFolder) -> None:
        """By the first. Raises WeightError."""
        try:
            self._files.finish(Path(opened.path))
        except OSError as error:
            raise _cannot(opened, error) from error

    def write(self, opened: OpenFolder, boxes: Iterable[Box]) -> int:
        """How many bytes of the version these are; converted to its dtypes. Blocking. Raises WeightError."""
        try:
            return self._files.write(Path(opened.path), boxes)
        except OSError as error:
            raise _cannot(opened, error) from error


def _cannot(opened: OpenFolder, error: OSError) -> WeightError:
    return WeightError(
        f"{opened.path} cannot be written: {error}; make room there, and place all ranks of one model where they see it"
    )
