"""Frozen models as workers: `roles/columns/frozen.py` is how they are spoken to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from headrace.models.device_lanes import lanes_on
from headrace.models.loading import load_causal_lm
from headrace.models.skeleton import causal_lm_skeleton
from headrace.roles.workers.scoring_rank import ScoringRank
from headrace.runtime.inline import ThreadPlacement
from headrace.runtime.local.service import on_lane
from headrace.runtime.protocol import Services
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host
from headrace.store.media.files import Digest
from headrace.training.frozen import FrozenScorer
from headrace.training.layouts.ranks import WHOLE, Layout
from headrace.training.protocol import Saved, Written
from headrace.training.rank import CHECKPOINTS
from headrace.training.rank_device import rank_device
from headrace.training.rows.packed_rows import ROW_TYPES, RowToTrain
from headrace.training.rows.row_reader import RowReader
from headrace.training.scoring import Scoring
from headrace.training.taking import taken
from headrace.weights.offer_types import WEIGHT_TYPES
from headrace.weights.plane import WeightOffer
from headrace.weights.receiving import receiver_of
from headrace.weights.version import Version


@dataclass(frozen=True, slots=True)
class FrozenSpec:
    """From which a model that only scores builds itself."""

    weights: str
    """Folder of the model, in Hugging Face format."""
    dtype: str
    """That it computes in, as `bfloat16`."""
    device: str
    temperature: float
    """Of sampling."""
    layout: Layout = WHOLE
    """Of ranks that score together."""
    max_tokens: int = 1
    """Of a micro-batch of one of several."""


class FrozenWorker(ScoringRank):
    """Writes the column that its kind is called."""

    kind: ClassVar[str]
    types: ClassVar[WireTypes] = ROW_TYPES.with_types(WEIGHT_TYPES).with_types(
        WireTypes({"frozen_spec": FrozenSpec, "layout": Layout, "written": Written, "digest": Digest})
    )

    def __init__(self, spec: FrozenSpec, host: Host) -> None:
        """Loads the model. Raises ConfigError."""
        if host.threads is not None:
            torch.set_num_threads(host.threads)
        dtype, device = getattr(torch, spec.dtype), rank_device(spec.device, host.rank)
        found = causal_lm_skeleton(spec.weights, device, dtype) if spec.layout.joint else None
        model, source = found or (load_causal_lm(spec.weights, dtype=dtype, device=device), None)
        self._model = FrozenScorer(
            model, temperature=spec.temperature, layout=spec.layout, max_tokens=spec.max_tokens, source=source
        )
        super().__init__(self._model, device, RowReader(host.refs))
        self._scoring = Scoring(self._reader, self._model.logprobs, self.kind)
        self._services: Services = host
        self._taken: Saved | None = None

    @classmethod
    def lanes(cls, spec: FrozenSpec, host: Host) -> ThreadPlacement | None:
        """See `headrace.runtime.workers`."""
        return lanes_on(rank_device(spec.device, host.rank), cls.kind, host.threads)

    def read(self, parts: Sequence[Sequence[RowToTrain]]) -> None:
        """See `TrainerRank.read`."""
        self._scoring.read(parts)

    def scores(self, rows: Sequence[RowToTrain]) -> Sequence[Sequence[Any]]:
        """See `AskedModel.scores`: of a rank's own rows; without any it is a pass for the sake of other ranks."""
        if not rows:
            self._model.idle()
            return []
        return self._scoring(rows, tells=self._tells)

    def take(self, offer: WeightOffer) -> Version:
        """See `AskedModel.take`."""
        return taken(self._model, receiver_of(offer))

    def take_state(self, copies: bool) -> None:
        """See `AskedModel.take_state`."""
        self._taken = self._model.saved(copies=copies)

    async def write_state(self, path: str) -> Written:
        """See `AskedModel.write_state`."""
        own, self._taken = self._taken, None
        assert own is not None, "nothing was taken"
        return await on_lane(self._services, CHECKPOINTS, own.write, Path(path))

    def load(self, path: str) -> None:
        """See `AskedModel.load`."""
        self._model.load(Path(path))


class ReferenceWorker(FrozenWorker):
    kind = "reference"


class ProximalWorker(FrozenWorker):
    kind = "proximal"


class TeacherWorker(FrozenWorker):
    kind = "teacher"
