"""What one rank writes of a checkpoint, apart from the trainer that it is of: as it is, or as a copy beside which the
trainer goes on. It is written on any thread, and no rank asks another one for anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from headrace.models.loading import save_pretrained_folder
from headrace.models.parted_files import Box, PartedFiles
from headrace.models.stored_model import StoredModel
from headrace.store.media.files import digest_of
from headrace.training.pieces import Piece
from headrace.training.protocol import Written
from headrace.training.state import TrainerRecord, read_boxes, write_part, write_record

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MASTER = "master."
"""Begins the names of weights in a trainer's state."""


class SavedModel(Protocol):
    def write(self, folder: Path) -> Written:
        """As a folder that `transformers` loads, which is made. Raises OSError."""


@dataclass(frozen=True, slots=True)
class ModelInParts:
    """Each rank writes what it has."""

    files: StoredModel
    weights: Mapping[str, Piece]
    leads: bool
    """Whether this rank writes what is no weight."""
    tokenizer: PreTrainedTokenizerBase | None

    def write(self, folder: Path) -> Written:
        """See `SavedModel.write`."""
        count = self.files.finish(folder, self.tokenizer) if self.leads else 0
        return Written(count + self.files.write(folder, boxes(self.weights)), self.files.size)


@dataclass(frozen=True, slots=True)
class WholeModel:
    """Of an architecture whose files are worked out of the whole model: the first rank has gathered it."""

    model: PreTrainedModel | None
    """None in the other ranks."""
    tokenizer: PreTrainedTokenizerBase | None

    def write(self, folder: Path) -> Written:
        """See `SavedModel.write`."""
        if self.model is not None:
            save_pretrained_folder(self.model, self.tokenizer, folder)
        return Written(0, 0)


@dataclass(frozen=True, slots=True)
class SavedTrainer:
    """All that a trainer goes on from, with its weights as a model in `model/`."""

    record: TrainerRecord
    state: Mapping[str, Piece]
    rng: Mapping[str, Tensor]
    model: SavedModel
    rank: int = 0

    def write(self, path: Path) -> Written:
        """See `Saved.write`."""
        path.mkdir(parents=True, exist_ok=True)
        written = self.model.write(path / "model")
        own = write_part(path, self.rank, self.record.parts, self.state, self.rng)
        if self.rank == 0:
            write_record(path, self.record)
        return replace(written, files={own.name: replace(digest_of(own), boxes=read_boxes(own))})


@dataclass(frozen=True, slots=True)
class SavedWeights:
    """Weights alone, in one file that all ranks write together."""

    files: PartedFiles
    weights: Mapping[str, Piece]
    leads: bool = True

    def write(self, path: Path) -> Written:
        """See `Saved.write`."""
        path.mkdir(parents=True, exist_ok=True)
        if self.leads:
            self.files.finish(path)
        return Written(self.files.write(path, boxes(self.weights)), self.files.size)


def weights_of(state: Mapping[str, Piece]) -> dict[str, Piece]:
    """Of a trainer's state."""
    return {name.removeprefix(MASTER): piece for name, piece in state.items() if name.startswith(MASTER)}


def boxes(weights: Mapping[str, Piece]) -> Iterator[Box]:
    """Of what several ranks have, the first one's."""
    return ((name, one.begin, one.tensor.detach()) for name, one in weights.items() if one.is_first)


def copied(state: Mapping[str, Piece]) -> dict[str, Piece]:
    """On the host, where the trainer does not change it; from a device into pinned memory. Only what is this rank's to
    write."""
    found = {
        name: replace(piece, tensor=_on_host(piece.tensor.detach()))
        for name, piece in state.items()
        if piece.is_first and (piece.tensor.numel() or not piece.whole)
    }
    if any(piece.tensor.is_cuda for piece in state.values()):
        torch.cuda.current_stream().synchronize()
    return found


def _on_host(tensor: Tensor) -> Tensor:
    if not tensor.is_cuda:
        return tensor.clone()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
