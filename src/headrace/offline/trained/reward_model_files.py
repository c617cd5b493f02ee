"""The model of `headrace rm` as the files that it leaves: of another class than the one that was trained."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace.models.loading import reward_model_outline, save_pretrained_folder
from headrace.models.stored_model import NotInParts, StoredModel
from headrace.training.protocol import Written
from headrace.training.trainer import HFTrainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_HEAD = "score.weight"
_HEADS = (_HEAD, "classifier.weight")
"""As classifiers of tokens call it."""


class RewardModelFiles:
    """Each rank writes what it has of them."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase) -> None:
        """Of a whole `model`, of `load_value_model`; it may be without memory."""
        self._classifier = reward_model_outline(model.config, dtype, tokenizer)
        self._tokenizer = tokenizer
        trained = dict(model.named_parameters())
        self._head = next(name for name in _HEADS if name in trained)
        names = {_HEAD: self._head}
        self._stored: StoredModel | None = None
        with suppress(NotInParts):  # else they are worked out of the whole model
            self._stored = StoredModel(self._classifier, dtype, {_HEAD, *trained}, names=names)

    def write(self, trainer: HFTrainer, path: Path) -> Written:
        """Whoever leads writes what is no weight too. Raises OSError."""
        if self._stored is None:
            weights = trainer.gathered()
            if trainer.is_first:
                self._write_whole(weights, path)
            return Written(0, 0)
        count = self._stored.finish(path, self._tokenizer) if trainer.is_first else 0
        own = ((name, piece.begin, piece.tensor.detach()) for name, piece in trainer.pieces())
        return Written(count + self._stored.write(path, own), self._stored.size)

    def _write_whole(self, weights: dict[str, Tensor], path: Path) -> None:
        own = self._classifier.state_dict()
        named = {_HEAD if name == self._head else name: tensor for name, tensor in weights.items()}
        found = {name: tensor for name, tensor in named.items() if name in own}
        self._classifier.load_state_dict(found, assign=True)
        self._classifier.tie_weights()
        save_pretrained_folder(self._classifier, self._tokenizer, path)
