"""A frozen model that gives log-probs: the reference, or a teacher."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace.models.logprobs import token_logprobs
from headrace.models.norms import use_written_out_norms
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import MicroBatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class FrozenScorer:
    """Blocking; call it on one compute lane."""

    def __init__(self, model: PreTrainedModel, *, temperature: float = 1.0) -> None:
        """Takes over `model`, in the dtype that it is to compute in. `temperature`: of sampling."""
        self._model = model.eval().requires_grad_(False)
        self._temperature = temperature
        use_written_out_norms(model)
        self._lm = PackedLM(model)

    @torch.no_grad()
    def logprobs(self, micro: MicroBatch) -> Tensor:
        """[N] float32 on the micro-batch's device, 0 outside its mask."""
        return token_logprobs(self._lm, micro.to(self._lm.device), self._temperature).to(micro.tokens.device)

    @torch.no_grad()
    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Take these weights, by Hugging Face name: a reference that is refreshed. Names that it lacks are errors."""
        mine = dict(self._model.named_parameters())
        for name, tensor in tensors:
            mine[name].copy_(tensor)
