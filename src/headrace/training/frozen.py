"""Models that only score: the reference, the proximal policy and a teacher give log-probs, a reward model scores."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace.models.logprobs import token_logprobs
from headrace.models.norms import use_written_out_norms
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import MicroBatch
from headrace.models.parted_files import FileTensor, PartedFiles
from headrace.models.values import sample_scores
from headrace.runtime.progress import mark, working
from headrace.training.layer_hooks import call_between_layers
from headrace.training.pieces import Piece
from headrace.training.saved import SavedWeights, copied
from headrace.training.state import WEIGHTS, read_weights
from headrace.training.trainer import HFTrainer
from headrace.weights.expected import WeightSchema
from headrace.weights.plane import Manifest

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class FrozenScorer:
    """Blocking; call it on one compute lane."""

    def __init__(self, model: PreTrainedModel, *, temperature: float = 1.0) -> None:
        """Takes over `model`, in the dtype that it is to compute in. `temperature`: of sampling."""
        self._model = model.eval().requires_grad_(False)
        self._temperature = temperature
        use_written_out_norms(model)
        call_between_layers(model, partial(mark, "layer"))
        self._lm = PackedLM(model)
        self._schema = WeightSchema(model)

    @torch.no_grad()
    def logprobs(self, micro: MicroBatch) -> Tensor:
        """[N] float32 on the micro-batch's device, 0 outside its mask."""
        with working("microbatch"):
            return token_logprobs(self._lm, micro.to(self._lm.device), self._temperature).to(micro.tokens.device)

    def require_fits(self, manifest: Manifest) -> None:
        """See `FrozenModel.require_fits`."""
        self._schema.require_fits(manifest)

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Compute with these weights from now on, by Hugging Face name. A name that repeats one (tied) may come too."""
        mine = dict(self._model.named_parameters())
        for name, tensor in tensors.items():
            if name in mine:
                mine[name].copy_(tensor)

    def saved(self, *, copies: bool) -> SavedWeights:
        """See `FrozenModel.saved`."""
        weights = {name: Piece.of_whole(one.detach()) for name, one in self._model.named_parameters()}
        stored = [FileTensor.of_whole(name, one.whole, one.tensor.dtype) for name, one in weights.items()]
        return SavedWeights(PartedFiles(stored, WEIGHTS), copied(weights) if copies else weights)

    def load(self, path: Path) -> None:
        """See `FrozenModel.load`."""
        self.take(dict(read_weights(path, dict(self._model.named_parameters()))))


class HybridReference:
    """The copy that a trainer keeps of its own weights, as part of a checkpoint."""

    def __init__(self, trainer: HFTrainer) -> None:
        self._trainer = trainer

    def saved(self, *, copies: bool) -> SavedWeights:
        return self._trainer.saved_reference(copies=copies)

    def load(self, path: Path) -> None:
        self._trainer.load_reference(path)


class FrozenRewardModel:
    """Blocking; call it on one compute lane."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Takes over `model`, of `load_reward_model`, in the dtype that it is to compute in."""
        call_between_layers(model, partial(mark, "layer"))
        self._lm = PackedLM(model.eval().requires_grad_(False))

    @torch.no_grad()
    def scores(self, micro: MicroBatch) -> Tensor:
        """[S] float32 on the CPU: the class's logit at each sample's last token."""
        with working("microbatch"):
            return sample_scores(self._lm, micro.to(self._lm.device)).cpu()[micro.sequence_starts[1:] - 1]
