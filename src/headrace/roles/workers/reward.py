"""The reward model as a worker: `roles/columns/reward_model.py` is how it is spoken to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from headrace.experience.columns import COLUMN_TYPES
from headrace.models.device_lanes import lanes_on
from headrace.models.loading import load_reward_model
from headrace.models.packing import PackRow, pack
from headrace.models.skeleton import reward_model_skeleton
from headrace.rewards.model_reward import Answered
from headrace.roles.workers.scoring_rank import ScoringRank
from headrace.runtime.inline import ThreadPlacement
from headrace.runtime.refs import Ref, Refs
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host
from headrace.training.frozen import FrozenRewardModel
from headrace.training.layouts.ranks import WHOLE, Layout
from headrace.training.rank_device import rank_device
from headrace.training.rows.read_ahead import ReadAhead
from headrace.training.rows.row_reader import RowReader


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """From which a reward model builds itself."""

    weights: str
    """Folder or Hub name of a sequence classifier of one class."""
    dtype: str
    """That it computes in, as `bfloat16`."""
    device: str
    layout: Layout = WHOLE
    """Of ranks that score together."""
    max_tokens: int = 1
    """Of a micro-batch of one of several."""


class RewardWorker(ScoringRank):
    """Named, as its lane is, for the stage that it scores for."""

    kind: ClassVar[str] = "reward"
    types: ClassVar[WireTypes] = COLUMN_TYPES.with_types(
        WireTypes({"answered": Answered, "reward_spec": RewardSpec, "layout": Layout})
    )

    def __init__(self, spec: RewardSpec, host: Host) -> None:
        """Loads the model. Raises ConfigError."""
        if host.threads is not None:
            torch.set_num_threads(host.threads)
        dtype, device = getattr(torch, spec.dtype), rank_device(spec.device, host.rank)
        found = reward_model_skeleton(spec.weights, device, dtype) if spec.layout.joint else None
        model, source = found or (load_reward_model(spec.weights, dtype=dtype, device=device), None)
        self._model = FrozenRewardModel(model, layout=spec.layout, max_tokens=spec.max_tokens, source=source)
        super().__init__(self._model, device, RowReader(host.refs))
        self._rows: ReadAhead[Answered] = ReadAhead(self._packed)

    @classmethod
    def lanes(cls, spec: RewardSpec, host: Host) -> ThreadPlacement | None:
        """See `headrace.runtime.workers`."""
        return lanes_on(rank_device(spec.device, host.rank), cls.kind, host.threads)

    def read(self, parts: Sequence[Sequence[Answered]]) -> None:
        """See `TrainerRank.read`."""
        self._rows.read(parts)

    def scores(self, samples: Sequence[Answered]) -> list[float]:
        """See `AnswerScorer.scores`; in one forward pass. Without samples it is one for the sake of other ranks."""
        if not samples:
            self._model.idle()
            return []
        scores = self._model.scores(pack(self._rows(samples)))
        return [float(score) for score in scores] if self._tells else []

    def _packed(self, samples: Sequence[Answered]) -> list[PackRow]:
        wanted = {sample.tokens for sample in samples if isinstance(sample.tokens, Ref)}
        return self._reader(wanted, lambda refs: [_row(refs, sample) for sample in samples])


def _row(refs: Refs, sample: Answered) -> PackRow:
    tokens = sample.tokens
    if isinstance(tokens, Ref):
        tokens = refs.get(tokens, ("tokens",))["tokens"]
    return PackRow(tokens[: sample.length], np.zeros(sample.length, np.bool_))
