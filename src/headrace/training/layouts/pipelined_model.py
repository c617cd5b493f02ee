"""A model whose layers are cut into stages: a pass goes through ranks one after another, cut into micro-batches that
follow each other (torch's `PipelineStage`).

Every stage is given the same rows (`RowReader`): hidden states are all that goes from stage to stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from headrace.models.packed_lm import PackedLM
from headrace.models.packing import MicroBatch, cut_up, plan_microbatches
from headrace.runtime.progress import mark
from headrace.training.layouts.group import RankGroup
from headrace.training.layouts.sharded_model import ShardedModel, Trained, differentiable, two_tokens
from headrace.training.layouts.sharding import parts
from headrace.training.protocol import Loss, Outputs

_STEPS = 4
"""Sizes of what stages hand on, for each doubling. A `PipelineStage` keeps the shapes of its first step, and receives
another one into the old memory without a word; a new one is a handshake through all stages, and memory for all
micro-batches of a call. So there are a few sizes, and each is filled up by a quarter at most. What fills is sent, and
never computed with: every stage knows how many tokens there are."""


@dataclass(slots=True)
class _Call:
    """What goes through the pipeline at once."""

    outputs: Outputs
    chunks: list[MicroBatch | None]
    """None: nothing, for the sake of ranks that have more."""
    loss: Loss | None = None
    size: int = 0
    """Of what is handed on, in tokens."""
    passed: int = 0
    """How many this stage has computed."""
    found: list[Tensor] = field(default_factory=list)
    """Of the last stage: what `outputs` made of each."""
    trained: list[Trained] = field(default_factory=list)
    error: Exception | None = None


class PipelinedModel:
    """Implements `JointModel`. The loss is seen by the last stage alone."""

    def __init__(
        self,
        sharded: ShardedModel,
        lm: PackedLM,
        ranks: RankGroup,
        dtype: torch.dtype,
        budget: int,
        together: int = 1,
    ) -> None:
        """`sharded`: this rank's stage. `dtype`: of hidden states. `budget`: tokens of a micro-batch. `together`: so
        many samples that follow each other stay in one."""
        self._sharded = sharded
        self._lm = lm
        self._ranks = ranks
        self._dtype = dtype
        self._budget = budget
        self._together = together
        self._stages = ranks.layout.pp
        self._is_last = ranks.stage == self._stages - 1
        self._call: _Call | None = None
        self._built: dict[bool, tuple[tuple[int, int], PipelineStage, Any]] = {}
        """By whether it trains: of how many micro-batches of what size the last schedule is, its stage, and itself."""
        for part in parts(lm.model):  # once the call has ended
            part.set_reshard_after_backward(not sharded.keeps)

    def train(self, outputs: Outputs, loss: Loss, micro: MicroBatch | None) -> list[Trained]:
        """See `JointModel`."""
        call = self._pass(_Call(outputs, self._chunks(micro), loss))
        return call.trained

    @torch.no_grad()
    def compute(self, outputs: Outputs, micro: MicroBatch | None) -> Tensor:
        """See `JointModel`: in all stages."""
        call = self._pass(_Call(outputs, self._chunks(micro)))
        own = torch.cat(call.found) if call.found else torch.zeros(0, device=self._lm.device)
        return own if micro is None else self._of_last(own, micro.num_tokens)

    def rest(self) -> None:
        """See `JointModel`: what stages receive into. The next call begins with a handshake."""
        self._built.clear()

    def _chunks(self, micro: MicroBatch | None) -> list[MicroBatch | None]:
        """As few as their budget allows, but one for each stage if there are so many samples; as many as in the other
        parts of the data."""
        found: list[MicroBatch | None] = []
        if micro is not None:
            samples, step = micro.lengths, self._together
            lengths = [sum(samples[first : first + step]) for first in range(0, len(samples), step)]
            plan = plan_microbatches(lengths, self._budget)
            if len(plan) < self._stages:
                plan = plan_microbatches(lengths, -(-sum(lengths) // self._stages))
            found += cut_up(micro, [len(runs) * step for runs in plan])
        return found + [None] * (self._ranks.most(max(len(found), 1)) - len(found))

    def _pass(self, call: _Call) -> _Call:
        self._call, trains, count = call, call.loss is not None, len(call.chunks)
        stage, schedule = self._scheduled(call)
        given = (torch.zeros(count, 1, device=self._lm.device),) if stage.is_first else ()
        target = torch.arange(count) if trains and stage.is_last else None
        try:
            schedule.step(*given, target=target, return_outputs=False)
        except RuntimeError:
            if call.error is not None:  # torch raises another, with all arguments in its words
                raise call.error from None
            raise
        stage.clear_runtime_states()  # what it was given, and gradients of that
        self._sharded.let_go()
        self._call = None
        return call

    def _compute(self, before: Tensor | None) -> Tensor:
        """This stage's part of the next micro-batch; called by torch."""
        call = self._now
        chunk = call.chunks[call.passed]
        call.passed += 1
        try:
            found = self._last(call, chunk, before) if self._is_last else self._carried(call, chunk, before)
        except Exception as error:
            call.error = error
            raise
        mark("microbatch")
        return found

    def _last(self, call: _Call, chunk: MicroBatch | None, before: Tensor | None) -> Tensor:
        found = self._sharded.passed(call.outputs, chunk, before)
        if call.loss is None and chunk is not None:
            call.found.append(found)
        return found

    def _carried(self, call: _Call, chunk: MicroBatch | None, before: Tensor | None) -> Tensor:
        found = self._sharded.run(_carried, self._computed(chunk), before)
        return F.pad(found, (0, 0, 0, call.size - found.shape[1])).contiguous()

    def _loss(self, outputs: Tensor, number: Tensor) -> Tensor:
        """Of the last stage, called by torch."""
        call = self._now
        chunk = call.chunks[int(number)]
        if chunk is None or call.loss is None:
            return 0.0 * outputs.sum()
        terms = call.loss(outputs, chunk)
        call.trained.append((chunk, terms))
        return differentiable(terms, outputs)

    def _scheduled(self, call: _Call) -> tuple[PipelineStage, Any]:
        """For as many micro-batches, of a size that all fit in; the last one if it is for that. A new one begins with a
        handshake of all stages, which all build it."""
        trains, chunks = call.loss is not None, call.chunks
        rows = [self._computed(chunk) for chunk in chunks]
        size = call.size = bin_of(max(_carried_tokens(self._lm, micro) for micro in rows))
        key = len(chunks), size
        known = self._built.get(trains)
        if known is not None and known[0] == key:
            return known[1:]
        self._built.pop(trains, None)
        hidden = int(self._lm.model.config.get_text_config().hidden_size)
        states = torch.empty(1, size, hidden, dtype=self._dtype, device="meta", requires_grad=trains)
        plain = torch.empty(1, 1, device="meta")
        stage = PipelineStage(
            _Stage(self._compute, is_first=self._ranks.stage == 0),
            self._ranks.stage,
            self._stages,
            self._lm.device,
            input_args=states if self._ranks.stage else plain,
            output_args=plain if self._is_last else states,
            group=self._ranks.stages,
        )
        loss = self._loss if trains else None
        one_by_one = trains and self._ranks.layout.schedule == "1f1b" and len(chunks) >= self._stages
        schedule = (Schedule1F1B if one_by_one else ScheduleGPipe)(stage, len(chunks), loss, scale_grads=False)
        self._built[trains] = key, stage, schedule
        return stage, schedule

    def _computed(self, chunk: MicroBatch | None) -> MicroBatch:
        return chunk if chunk is not None and bool(chunk.mask.any()) else two_tokens(self._lm.device)

    def _of_last(self, found: Tensor, tokens: int) -> Tensor:
        """What the last stage has, [tokens] or [tokens, K] float32, in all."""
        columns = self._ranks.from_stage(
            self._stages - 1, torch.tensor(found.shape[1] if found.dim() > 1 else 0, device=found.device)
        )
        shape = (tokens, int(columns)) if columns else (tokens,)
        return self._ranks.from_stage(self._stages - 1, found if self._is_last else found.new_empty(shape))

    @property
    def _now(self) -> _Call:
        assert self._call is not None
        return self._call


class _Stage(nn.Module):
    """What torch runs. The model is none of its modules: of those torch would forget the gradients."""

    def __init__(self, compute: Callable[[Tensor | None], Tensor], *, is_first: bool) -> None:
        super().__init__()
        self._compute = compute
        self._is_first = is_first

    def forward(self, before: Tensor) -> Tensor:
        return self._compute(None if self._is_first else before)


def bin_of(tokens: int) -> int:
    """The size for so many: `_STEPS` for each doubling."""
    unit = 1 << max(0, tokens.bit_length() - _STEPS.bit_length())
    return -(-tokens // unit) * unit


def _carried(lm: PackedLM, micro: MicroBatch) -> Tensor:
    return lm.carried(micro.tokens, micro.positions, micro.lengths, micro.experts)


def _carried_tokens(lm: PackedLM, micro: MicroBatch) -> int:
    return lm.carried_tokens(micro.tokens, micro.lengths, micro.experts)
