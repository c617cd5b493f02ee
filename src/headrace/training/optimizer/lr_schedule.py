"""Learning-rate schedules, as pure functions of the step."""

from __future__ import annotations

import math
from typing import Literal, Protocol


class ScheduleSettings(Protocol):
    """The settings read here; `headrace.config.trainer.LRScheduleConfig` has them."""

    @property
    def kind(self) -> Literal["constant", "linear", "cosine"]: ...

    @property
    def warmup_steps(self) -> int: ...

    @property
    def min_ratio(self) -> float: ...


def learning_rate(step: int, total_steps: int, peak: float, settings: ScheduleSettings) -> float:
    """Learning rate of optimiser step `step` (from 0) of `total_steps`.

    With W warm-up steps: peak (step + 1) / (W + 1) while step < W. After them, with p = (step - W) /
    (total_steps - 1 - W) kept within 0 to 1 and m = min_ratio: `constant` peak; `linear` peak (1 - (1 - m) p);
    `cosine` peak (m + (1 - m)(1 + cos(pi p)) / 2) (SGDR, arXiv 1608.03983, eq. 5). The last step gets m peak.
    """
    warmup = settings.warmup_steps
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    last = total_steps - 1 - warmup
    progress = min(max((step - warmup) / last, 0.0), 1.0) if last > 0 else 0.0
    floor = settings.min_ratio
    match settings.kind:
        case "constant":
            return peak
        case "linear":
            return peak * (1 - (1 - floor) * progress)
        case "cosine":
            return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2)
