"""A model of which each rank has a part: passes over it are made by all ranks at once."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.fsdp import register_fsdp_forward_method

from headrace.config import ConfigError
from headrace.models.packed_lm import PackedForward, PackedLM
from headrace.models.packing import MicroBatch
from headrace.training.layouts.group import RankGroup
from headrace.training.layouts.sharding import parts, shard, split_layers
from headrace.training.protocol import Outputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PASS = "headrace_pass"


class ShardedModel:
    def __init__(self, lm: PackedLM, ranks: RankGroup, dtype: torch.dtype, *, offload: bool = False) -> None:
        """Cuts the model of `lm` up, whose parameters are whole and in float32 until then. `dtype`: of its passes.
        `offload`: its parts, and their gradients, are in the host's memory between them.
        Raises ConfigError for an architecture that cannot be cut up so."""
        model: Any = lm.model
        shared = ranks.shared_pass()
        if shared is not None and not (lm.forward_kind is PackedForward.SEGMENTS and lm.has_plain_head):
            raise ConfigError(
                f"layout shares passes among ranks (tp, cp), and {type(model).__name__} computes attention or its "
                "output in a way that cannot be shared; use tp: 1, cp: 1"
            )
        if ranks.tensor is not None:
            split_layers(model, ranks.tensor)
        self._keeps = ranks.layout.zero == 2
        shard(model, ranks.shards, dtype, keeps_weights=self._keeps, offload=offload)
        lm.shared = shared
        self._lm = lm
        setattr(model, _PASS, MethodType(_headrace_pass, model))
        register_fsdp_forward_method(model, _PASS)

    def __call__(self, outputs: Outputs, micro: MicroBatch) -> Tensor:
        """What `outputs` makes of it, by all ranks. Where no token is in the mask the pass is over others: ranks differ
        in what they have."""
        try:
            if micro.mask.any():
                return self._pass(outputs, micro)
            other = self._pass_over_two(outputs)
            return other.new_zeros((micro.num_tokens, *other.shape[1:])) + 0.0 * other.sum()
        finally:
            self._let_go()

    def idle(self, outputs: Outputs) -> Tensor:
        """The pass of a rank that has no rows: over two tokens."""
        try:
            return self._pass_over_two(outputs)
        finally:
            self._let_go()

    def _pass_over_two(self, outputs: Outputs) -> Tensor:
        return self._pass(outputs, _two_tokens(self._lm.device))

    def _pass(self, outputs: Outputs, micro: MicroBatch) -> Tensor:
        found: Tensor = getattr(self._lm.model, _PASS)(outputs, self._lm, micro)
        return found

    def _let_go(self) -> None:
        """Of gathered weights that no backward pass lets go of."""
        if self._keeps and not torch.is_grad_enabled():
            for part in parts(self._lm.model):
                part.reshard()


def _two_tokens(device: torch.device) -> MicroBatch:
    return MicroBatch(
        tokens=torch.zeros(2, dtype=torch.int64, device=device),
        positions=torch.arange(2, device=device),
        sequence_starts=torch.tensor([0, 2]),
        mask=torch.tensor([False, True], device=device),
        sample_index=torch.zeros(2, dtype=torch.int64, device=device),
        columns={"truncated": torch.zeros(2, device=device)},
    )


def _headrace_pass(model: PreTrainedModel, outputs: Outputs, lm: PackedLM, micro: MicroBatch) -> Tensor:
    """A method of the model, so that FSDP2 gathers before it, and learns of its end."""
    return outputs(lm, micro)
