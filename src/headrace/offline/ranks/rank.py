"""One rank as a worker: `offline/ranks/model_of_ranks.py` is how they are spoken to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.config import DPOConfig, RMConfig, SFTConfig
from headrace.models.device_lanes import lanes_on
from headrace.models.packing import PackRow
from headrace.offline.trained.of_config import OfflineConfig, model_of
from headrace.runtime.inline import ThreadPlacement
from headrace.runtime.process.joined import Joined
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host
from headrace.store.media.files import Digest
from headrace.training.layouts.ranks import layout_of
from headrace.training.protocol import StepReport, Written
from headrace.training.rank_device import numbered_device, rank_device
from headrace.training.replicas import At, MeetingPlace
from headrace.weights.devices import device_name
from headrace.weights.seen import Seen, seen_here

_CONFIGS = {"sft_config": SFTConfig, "rm_config": RMConfig, "dpo_config": DPOConfig}


@dataclass(frozen=True, slots=True)
class OfflineRankSpec:
    """From which a rank builds itself."""

    config: OfflineConfig
    device: str
    """Of the first rank; on CUDA the others have those that follow, on each machine from there on."""
    steps: int
    """Of the whole run."""


class OfflineRank:
    """What is asked of it and what it answers is plain data. Blocking; on one lane. Micro-batches without rows are
    passes for the sake of other ranks."""

    kind: ClassVar[str] = "rank"
    types: ClassVar[WireTypes] = WireTypes(
        {
            **_CONFIGS,
            "digest": Digest,
            "offline_rank_spec": OfflineRankSpec,
            "pack_row": PackRow,
            "seen": Seen,
            "step_report": StepReport,
            "written": Written,
        }
    )

    def __init__(self, spec: OfflineRankSpec, host: Host) -> None:
        """Loads the model. Raises ConfigError."""
        if host.threads is not None:
            torch.set_num_threads(host.threads)
        layout = layout_of(spec.config.trainer.layout)
        device = _device(spec, host.rank)
        self._trained = model_of(spec.config, device, spec.steps, layout)
        self._device = device
        self._meeting = MeetingPlace()
        self._tells = True

    @classmethod
    def lanes(cls, spec: OfflineRankSpec, host: Host) -> ThreadPlacement | None:
        """See `headrace.runtime.workers`."""
        return lanes_on(_device(spec, host.rank), cls.kind, host.threads)

    def sees(self) -> Seen:
        """See `TrainerRank.sees`."""
        return seen_here(device_name(self._device))

    def meet(self, seconds: float, host: str) -> At:
        """See `TrainerRank.meet`."""
        return self._meeting.open(seconds, host)

    def come_together(self, rank: int, at: At, seconds: float, tells: bool) -> None:
        """See `TrainerRank.come_together`."""
        self._tells = tells
        self._trained.trainer.join(rank, self._meeting.of(at), seconds)

    def pair(self, replica: int, size: int, at: At, seconds: float) -> None:
        """See `TrainerRank.pair`."""
        self._trained.trainer.pair(replica, self._meeting.of(at), seconds, size)

    def accumulate(self, micros: Sequence[Sequence[PackRow]]) -> None:
        """These micro-batches, one after another."""
        for rows in micros:
            self._trained.accumulate(rows)

    def step(self) -> StepReport:
        """See `Trainer.step`."""
        return self._trained.trainer.step()

    def measured(self, micros: Sequence[Sequence[PackRow]]) -> list[dict[str, Any]]:
        """See `TrainedModel.measured`: of each micro-batch with rows; nothing if another rank tells it."""
        found = [(rows, self._trained.measured(rows)) for rows in micros]
        return [told for rows, told in found if rows and self._tells]

    def logprobs(self, micros: Sequence[Sequence[PackRow]]) -> list[list[NDArray[np.float32]]]:
        """As `measured`: see `TrainedModel.logprobs`."""
        found = [(rows, self._trained.logprobs(rows)) for rows in micros]
        return [told for rows, told in found if rows and self._tells]

    def save(self, path: str) -> Written:
        """See `Saved.write`."""
        return self._trained.trainer.saved(copies=False).write(Path(path))

    def load(self, path: str) -> None:
        """See `Trainer.load`."""
        self._trained.trainer.load(Path(path))

    def export(self, path: str) -> Written:
        """See `TrainedModel.export`."""
        return self._trained.export(Path(path))


def _device(spec: OfflineRankSpec, rank: int) -> torch.device:
    """Raises ConfigError."""
    joined = None if spec.config.runtime.kind == "ray" else Joined.of()
    return rank_device(spec.device, rank) if joined is None else numbered_device(spec.device, joined.local)
