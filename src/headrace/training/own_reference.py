"""A copy of a trainer's own weights, as they were: the reference of the policy that is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from headrace.models.parted_files import PartedFiles, tensors_of
from headrace.training.optimizer.trained_weights import TrainedWeights
from headrace.training.saved import SavedWeights, copied
from headrace.training.state import WEIGHTS, read_weights


class OwnReference:
    """None until it is kept. Its methods take the weights that it is a copy of, of the same trainer each time."""

    def __init__(self) -> None:
        self.is_wanted = False
        """To be kept, once there are weights."""
        self._copy: list[Tensor] | None = None

    @property
    def tensors(self) -> Sequence[Tensor]:
        """All memory that it has."""
        return self._copy or ()

    def keep(self, weights: TrainedWeights) -> None:
        """As they are now."""
        self._copy = None  # its memory is the newer one's
        self._copy = weights.copy()

    @contextmanager
    def in_place(self, weights: TrainedWeights) -> Iterator[None]:
        """Within, the model computes with it."""
        with weights.holding(self._kept):
            yield

    def saved(self, weights: TrainedWeights, dtype: torch.dtype, *, leads: bool) -> SavedWeights:
        """What this rank writes of it, in `dtype`: a copy, since passes go on while that is written, in which it holds
        the weights. `leads`: it is the first rank."""
        shapes = {name: tensor.shape for name, tensor in weights.outlines().items()}
        files, pieces = PartedFiles(tensors_of(shapes, dtype), WEIGHTS), weights.pieces(self._kept)
        return SavedWeights(files, copied(pieces), leads)

    def load(self, path: Path, weights: TrainedWeights) -> None:
        """What was written of it. Raises CheckpointError."""
        weights.fill(self._kept, read_weights(path, weights.outlines()))

    @property
    def _kept(self) -> list[Tensor]:
        assert self._copy is not None, "keep_reference was not called"
        return self._copy
