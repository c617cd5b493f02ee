"""Models that only score: the reference, the proximal policy and a teacher give log-probs, a reward model scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace.models.file_weights import FileWeights
from headrace.models.logprobs import token_logprobs
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import MicroBatch
from headrace.models.parted_files import FileTensor, PartedFiles
from headrace.models.values import sample_scores
from headrace.training.layouts.ranks import WHOLE, Layout
from headrace.training.replicas import At, Meeting
from headrace.training.rows.row_reader import Beside
from headrace.training.saved import SavedWeights, copied
from headrace.training.shared_model import SharedModel
from headrace.training.state import WEIGHTS, read_weights
from headrace.training.trainer import HFTrainer
from headrace.weights.expected import WeightSchema
from headrace.weights.plane import Manifest, Share

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class FrozenScorer:
    """Blocking; call it on one compute lane."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float = 1.0,
        layout: Layout = WHOLE,
        max_tokens: int = 1,
        source: FileWeights | None = None,
    ) -> None:
        """As `SharedModel`. `temperature`: of sampling."""
        self._shared = SharedModel(model, layout=layout, max_tokens=max_tokens, source=source, has_fast_norms=True)
        self._outputs = partial(_logprobs, temperature)
        self._schema = WeightSchema(model)

    def join(self, rank: int, meeting: Meeting | At, seconds: float) -> None:
        """See `SharedModel.join`."""
        self._shared.join(rank, meeting, seconds)

    @property
    def beside(self) -> Beside | None:
        """See `RankGroup.beside`."""
        return self._shared.beside

    def logprobs(self, micro: MicroBatch) -> Tensor:
        """[N] float32 on the micro-batch's device, 0 outside its mask."""
        return self._shared.compute(self._outputs, micro)

    def idle(self) -> None:
        """See `SharedModel.idle`."""
        self._shared.idle(self._outputs)

    def require_fits(self, manifest: Manifest) -> None:
        """See `FrozenModel.require_fits`."""
        self._schema.require_fits(manifest)

    @property
    def share(self) -> Share:
        """See `FrozenModel.share`."""
        return self._shared.share

    def of_any(self, fault: str | None) -> str | None:
        """See `SharedModel.of_any`."""
        return self._shared.of_any(fault)

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Compute with these weights from now on, by Hugging Face name. A name that repeats one (tied) may come too."""
        own = self._shared.weights
        for name, tensor in tensors.items():
            if name in own:
                piece = own[name]
                piece.tensor.copy_(tensor[piece.box])

    def saved(self, *, copies: bool) -> SavedWeights:
        """See `FrozenModel.saved`."""
        weights = self._shared.weights
        stored = [FileTensor.of_whole(name, one.whole, one.tensor.dtype) for name, one in weights.items()]
        return SavedWeights(PartedFiles(stored, WEIGHTS), copied(weights) if copies else weights)

    def load(self, path: Path) -> None:
        """See `FrozenModel.load`."""
        self.take(dict(read_weights(path, {name: one.tensor for name, one in self._shared.weights.items()})))


class HybridReference:
    """The copy that a trainer keeps of its own weights, as part of a checkpoint."""

    def __init__(self, trainer: HFTrainer) -> None:
        self._trainer = trainer

    def saved(self, *, copies: bool) -> SavedWeights:
        """Always a copy."""
        return self._trainer.saved_reference()

    def load(self, path: Path) -> None:
        self._trainer.load_reference(path)


class FrozenRewardModel:
    """Blocking; call it on one compute lane."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        layout: Layout = WHOLE,
        max_tokens: int = 1,
        source: FileWeights | None = None,
    ) -> None:
        """As `SharedModel`, of `load_reward_model`."""
        self._shared = SharedModel(model, layout=layout, max_tokens=max_tokens, source=source)

    def join(self, rank: int, meeting: Meeting | At, seconds: float) -> None:
        """See `SharedModel.join`."""
        self._shared.join(rank, meeting, seconds)

    @property
    def beside(self) -> Beside | None:
        """See `RankGroup.beside`."""
        return self._shared.beside

    def scores(self, micro: MicroBatch) -> Tensor:
        """[S] float32 on the CPU: the class's logit at each sample's last token."""
        seen = replace(micro, mask=torch.ones_like(micro.mask))  # ranks leave out a pass over nothing that counts
        return self._shared.compute(sample_scores, seen).cpu()[micro.sequence_starts[1:] - 1]

    def idle(self) -> None:
        """See `SharedModel.idle`."""
        self._shared.idle(sample_scores)


def _logprobs(temperature: float, lm: PackedLM, micro: MicroBatch) -> Tensor:
    return token_logprobs(lm, micro, temperature)
