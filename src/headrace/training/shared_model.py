"""A model that computes without gradients: all of it, or the part that one of several ranks has."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace.models.fast_linear import use_fast_products
from headrace.models.file_weights import FileWeights
from headrace.models.norms import use_fast_norms
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import MicroBatch
from headrace.runtime.progress import mark, working
from headrace.training.layer_hooks import call_between_layers
from headrace.training.layouts.ranks import WHOLE, Layout
from headrace.training.model_files import fill_pieces
from headrace.training.pieces import Piece
from headrace.training.protocol import Outputs
from headrace.training.replicas import At, Meeting
from headrace.training.rows.row_reader import Beside
from headrace.weights.plane import ALL, Share

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headrace.training.layouts.group import RankGroup
    from headrace.training.layouts.sharded_model import JointModel
    from headrace.training.layouts.sharded_pieces import Outlines


class SharedModel:
    """Blocking; on one compute lane."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        layout: Layout = WHOLE,
        max_tokens: int = 1,
        source: FileWeights | None = None,
        has_fast_norms: bool = False,
    ) -> None:
        """Takes over `model`, in the dtype that it is to compute in. `layout`: of ranks that compute with it together;
        of one that is `joint` nothing is to be asked before `join`. `max_tokens`: of a micro-batch of one of them.
        `source`: of a `model` without memory: each rank reads its part there when they `join`."""
        self._model = model.eval().requires_grad_(False)
        self._layout = layout.of_replica
        self._max_tokens = max_tokens
        self._source = source
        self._dtype = model.dtype
        device = None if source is None else source.device
        if has_fast_norms and layout.tp == 1:
            use_fast_norms(model, device)
        call_between_layers(model, partial(mark, "layer"))
        with nullcontext() if source is None else source.lent(model):
            self._lm = PackedLM(model, device)
        use_fast_products(model, self._lm.device, self._dtype)
        self._ranks: RankGroup | None = None
        self._joint: JointModel | None = None
        self._outlines: Outlines = {}

    def join(self, rank: int, meeting: Meeting | At, seconds: float) -> None:
        """Be this one of the ranks that cut the model up, from now on. `meeting`: the first one's own, or where it
        is. `seconds`: that a rank may be later than another. Raises RuntimeError, ConfigError."""
        # Most runs need none of this, and torch takes its time to import it.
        from headrace.training.layouts.group import RankGroup
        from headrace.training.layouts.sharded_model import joint_model

        ranks = self._ranks = RankGroup(self._layout, rank, meeting, seconds, self._lm.device)
        source, self._source = self._source, None
        budget = self._max_tokens * self._layout.cp
        self._joint, self._outlines = joint_model(self._lm, ranks, self._dtype, budget, source=source)
        if source is not None:
            fill_pieces(self.weights, source)

    @property
    def beside(self) -> Beside | None:
        """See `RankGroup.beside`."""
        return None if self._ranks is None else self._ranks.beside

    @property
    def share(self) -> Share:
        """See `FrozenModel.share`."""
        return ALL if self._ranks is None else Share(self._ranks.rank, self._layout.size)

    def of_any(self, fault: str | None) -> str | None:
        """The first fault that a rank of this model tells, if one does: by all that have parts, before they pass over
        something for which all must be as they should."""
        if self._ranks is None:
            return fault
        faults = [told["fault"] for told in self._ranks.told({"fault": fault})]
        return next((each for each in faults if each is not None), None)

    @cached_property
    def weights(self) -> Mapping[str, Piece]:
        """What this rank computes with, by Hugging Face name. Views. Not before `join`, where there is one."""
        named = self._model.named_parameters()
        if self._ranks is None:
            return {name: Piece.of_whole(one.detach()) for name, one in named}
        from headrace.training.layouts.sharded_pieces import pieces_of

        return pieces_of(named, self._outlines, self._ranks.stage)

    @torch.no_grad()
    def compute(self, outputs: Outputs, micro: MicroBatch) -> Tensor:
        """What `outputs` makes of it, on the micro-batch's device. By all ranks that have parts, at once."""
        own = micro.to(self._lm.device)
        with working("microbatch"):
            found = outputs(self._lm, own) if self._joint is None else self._joint.compute(outputs, own)
            return found.to(micro.tokens.device)

    @torch.no_grad()
    def idle(self, outputs: Outputs) -> None:
        """Take part in a pass over other ranks' rows."""
        assert self._joint is not None, "its passes are its own"
        with working("microbatch"):
            self._joint.compute(outputs, None)
