"""A model of which each rank has a part: passes over it are made by all ranks at once."""

from __future__ import annotations

from contextlib import nullcontext
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.distributed.fsdp import register_fsdp_forward_method

from headrace.models.file_weights import FileWeights
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import MicroBatch
from headrace.models.parallel.expert_share import expert_modules
from headrace.models.parallel.shareable import require_shareable
from headrace.models.parallel.stages import Outline, keep_stage
from headrace.runtime.progress import mark
from headrace.training.layouts.group import RankGroup
from headrace.training.layouts.sharding import give_memory, parts, shard, split_layers
from headrace.training.protocol import Loss, LossTerms, Outputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PASS = "headrace_pass"
Trained = tuple[MicroBatch, LossTerms]
"""A micro-batch, and what the loss made of it."""


class JointModel(Protocol):
    """A model that ranks compute together: everything here is done by all of them, in one order."""

    def train(self, outputs: Outputs, loss: Loss, micro: MicroBatch | None) -> list[Trained]:
        """A pass over `micro`, there and back; over nothing, for the sake of other ranks, if there is none. What the
        loss made of the micro-batches that it was passed as; nothing of a rank that does not see the loss."""

    def compute(self, outputs: Outputs, micro: MicroBatch | None) -> Tensor:
        """What `outputs` makes of it, without gradient, in all ranks that it was given to."""

    def rest(self) -> None:
        """Give back memory that is kept from pass to pass."""


class ShardedModel:
    def __init__(self, lm: PackedLM, ranks: RankGroup, dtype: torch.dtype, *, offload: bool = False) -> None:
        """Cuts the model of `lm` up, whose parameters are whole and in float32 until then. `dtype`: of its passes.
        `offload`: its parts, and their gradients, are in the host's memory between them.
        Raises ConfigError for an architecture that cannot be cut up so."""
        model: Any = lm.model
        shared = ranks.shared_pass()
        if shared is not None:
            require_shareable(lm)
        if ranks.tensor is not None:
            split_layers(model, ranks.tensor)
        self.keeps = ranks.layout.zero == 2
        """Whether weights stay gathered between a pass and the pass back."""
        experts = ranks.sharing_experts() if expert_modules(model) else None
        shard(model, ranks.shards, dtype, keeps_weights=self.keeps, offload=offload, experts=experts)
        lm.shared = shared
        self._lm = lm
        setattr(model, _PASS, MethodType(_headrace_pass, model))
        register_fsdp_forward_method(model, _PASS)

    def train(self, outputs: Outputs, loss: Loss, micro: MicroBatch | None) -> list[Trained]:
        """See `JointModel`."""
        found = self.passed(outputs, micro)
        mark("microbatch")
        if micro is None:
            (0.0 * found.sum()).backward()
            return []
        terms = loss(found, micro)
        differentiable(terms, found).backward()
        return [(micro, terms)]

    @torch.no_grad()
    def compute(self, outputs: Outputs, micro: MicroBatch | None) -> Tensor:
        """See `JointModel`."""
        try:
            return self.passed(outputs, micro)
        finally:
            self.let_go()

    def passed(self, outputs: Outputs, micro: MicroBatch | None, before: Tensor | None = None) -> Tensor:
        """What `outputs` makes of it. Where no token is in the mask the pass is over two others, as without rows: ranks
        differ in what they have. `before`: see `PackedLM.behind`."""
        if micro is not None and micro.mask.any():
            return self.run(outputs, micro, before)
        other = self.run(outputs, two_tokens(self._lm.device), before)
        return other if micro is None else other.new_zeros((micro.num_tokens, *other.shape[1:])) + 0.0 * other.sum()

    def run(self, outputs: Outputs, micro: MicroBatch, before: Tensor | None = None) -> Tensor:
        """What `outputs` makes of it as it is."""
        found: Tensor = getattr(self._lm.model, _PASS)(outputs, self._lm, micro, before)
        return found

    def rest(self) -> None:
        """See `JointModel`: there is none."""

    def let_go(self) -> None:
        """Of gathered weights that no backward pass lets go of."""
        if self.keeps:
            for part in parts(self._lm.model):
                part.reshard()


def joint_model(
    lm: PackedLM,
    ranks: RankGroup,
    dtype: torch.dtype,
    budget: int,
    *,
    offload: bool = False,
    source: FileWeights | None = None,
    together: int = 1,
) -> tuple[JointModel, dict[str, Outline]]:
    """This rank's part of the model of `lm`, cut out of it; and what parameters the whole has. As `ShardedModel`, and
    `keep_stage`; `budget`, `together`: see `PipelinedModel`. `source`: of a model without memory, whose parts have it
    afterwards, to be filled."""
    with nullcontext() if source is None else source.lent(lm.model):
        outlines = keep_stage(lm, ranks.stage, ranks.layout.pp)
    sharded = ShardedModel(lm, ranks, dtype, offload=offload)
    if source is not None:
        give_memory(lm.model, torch.device("cpu") if offload else lm.device)
    if ranks.layout.pp == 1:
        return sharded, outlines
    # torch takes its time to import schedules.
    from headrace.training.layouts.pipelined_model import PipelinedModel

    return PipelinedModel(sharded, lm, ranks, dtype, budget, together), outlines


def differentiable(terms: LossTerms, outputs: Tensor) -> Tensor:
    """The numerator; where it does not depend on `outputs`, nothing of them, since all ranks make the pass back."""
    return terms.numerator if terms.numerator.requires_grad else 0.0 * outputs.sum()


def two_tokens(device: torch.device) -> MicroBatch:
    """What a rank passes over that has no rows."""
    return MicroBatch(
        tokens=torch.zeros(2, dtype=torch.int64, device=device),
        positions=torch.arange(2, device=device),
        sequence_starts=torch.tensor([0, 2]),
        mask=torch.tensor([False, True], device=device),
        sample_index=torch.zeros(2, dtype=torch.int64, device=device),
        columns={"truncated": torch.zeros(2, device=device)},
    )


def _headrace_pass(
    model: PreTrainedModel, outputs: Outputs, lm: PackedLM, micro: MicroBatch, before: Tensor | None
) -> Tensor:
    """A method of the model, so that FSDP2 gathers before it, and learns of its end. It has no view: the hook by which
    FSDP2 gathers for the pass back would be gone once a loss changes that in place."""
    with lm.behind(before):
        found = outputs(lm, micro)
        return found.clone() if found._is_view() else found
