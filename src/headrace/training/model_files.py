"""The model of a trainer as the files that `transformers` loads: which rank writes what of them, and reads what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace.models.file_weights import FileWeights
from headrace.models.finite_weights import check_finite
from headrace.models.loading import like
from headrace.models.stored_model import NotInParts, StoredModel
from headrace.training.optimizer.trained_weights import TrainedWeights
from headrace.training.pieces import Piece
from headrace.training.saved import ModelInParts, SavedModel, WholeModel, weights_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class ModelFiles:
    def __init__(
        self,
        model: PreTrainedModel,
        dtype: torch.dtype,
        tokenizer: Callable[[], PreTrainedTokenizerBase] | None,
        *,
        joint: bool,
    ) -> None:
        """`dtype`: of the weights in them. `tokenizer`: makes the one that goes with it. `joint`: ranks cut the model
        up."""
        self._model = model
        self._dtype = dtype
        self._tokenizer = tokenizer
        self._joint = joint

    def prepare(self) -> None:
        """To be called while the model is whole."""
        _ = self._stored

    def saved(
        self, state: Mapping[str, Piece], gather: Callable[[], Mapping[str, Tensor]], *, leads: bool
    ) -> SavedModel:
        """What this rank writes. `state`: what it has of the trainer's. `gather`: gives the first rank all weights, and
        the others help. `leads`: it is the first."""
        tokenizer = self._tokenizer() if leads and self._tokenizer is not None else None
        if self._stored is not None:
            return ModelInParts(self._stored, weights_of(state), leads, tokenizer)
        tensors = gather()
        return WholeModel(like(self._model, tensors, self._dtype) if leads else None, tokenizer)

    @cached_property
    def _stored(self) -> StoredModel | None:
        """None where its files can be written by who has all of it alone."""
        model = self._model if hasattr(self._model, "save_pretrained") else like(self._model, {}, self._dtype)
        trained = {name for name, one in model.named_parameters() if one.requires_grad or self._joint}
        try:
            return StoredModel(model, self._dtype, trained)
        except NotInParts:
            return None


def fill(weights: TrainedWeights, source: FileWeights) -> None:
    """As `fill_pieces`, of a rank that trains."""
    fill_pieces(weights_of(weights.state(to_fill=True)), source)
    weights.publish()


@torch.no_grad()
def fill_pieces(own: Mapping[str, Piece], source: FileWeights) -> None:
    """Read a rank's own part, by Hugging Face name. Raises ConfigError for what is not finite."""
    for name, piece in own.items():
        if piece.tensor.numel():
            source.read(name, piece.begin, piece.tensor)
    check_finite(str(source.folder), ((name, piece.tensor) for name, piece in own.items()))
