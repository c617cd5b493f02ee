"""Which kept sets a model allows.

Limits by top-k and top-p are read in two ways: top-p of what top-k leaves, as the embedded engine and vLLM do, or of
the whole vocabulary, as SGLang does. Either is right, as long as the log-probs are of the set that was kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.engines.protocol import SamplingParams

_ROUNDING = 1e-6
"""Of a cumulated mass in float32."""


@dataclass(frozen=True, slots=True)
class KeptBounds:
    """What a kept set has to have in it, and may."""

    required: NDArray[np.bool_]
    """[V]."""
    allowed: NDArray[np.bool_]
    """[V]: with ties."""
    least: int
    """Number of ids."""

    def fault(self, kept: NDArray[np.integer]) -> str | None:
        """What is wrong with a set; None if it is right."""
        inside = np.zeros(len(self.allowed), dtype=bool)
        inside[kept] = True
        if beyond := int((inside & ~self.allowed).sum()):
            return f"{beyond} of {len(kept)} ids are kept beyond its limits, and are no ties"
        if missing := int((self.required & ~inside).sum()):
            return f"{missing} ids are missing beside the {len(kept)} that are kept"
        return f"{len(kept)} ids are kept, at least {self.least} have to be" if len(kept) < self.least else None


def kept_fault(
    told: NDArray[np.float32], kept: NDArray[np.integer], sampling: SamplingParams, gap: float
) -> str | None:
    """What is wrong with the set of a token of which the model tells the log-probs `told` [V], at the request's
    temperature; None if it is right by either reading. `gap`: see `Subject.largest_gap`."""
    faults = [kept_bounds(told, sampling, gap, of_all=of_all).fault(kept) for of_all in (False, True)]
    return None if None in faults else faults[0]


def kept_bounds(told: NDArray[np.float32], sampling: SamplingParams, gap: float, *, of_all: bool) -> KeptBounds:
    """`of_all`: top-p is of the whole vocabulary. Each of two log-probs may be off by `gap`, so ids that are as likely
    up to twice that are ties."""
    limit = min(sampling.top_k or len(told), len(told))
    ordered = np.sort(told.astype(np.float64))[::-1]
    required, allowed = told > ordered[limit - 1] + 2 * gap, told >= ordered[limit - 1] - 2 * gap
    least = limit
    if sampling.top_p < 1:
        probs = np.exp(ordered)
        before = np.cumsum(probs) - probs
        low = high = 1.0
        if not of_all:
            low, high = float(probs[:limit].sum()), float(np.exp(told[allowed].astype(np.float64)).sum())
        surely = before < low * sampling.top_p * (1 - 2 * gap) - _ROUNDING
        perhaps = before <= high * sampling.top_p * (1 + 2 * gap) + _ROUNDING
        least = max(1, min(limit, int(surely.sum())))
        required = required & (told > ordered[least - 1] + 2 * gap)
        allowed = allowed & (told >= ordered[perhaps].min() - 2 * gap)
    return KeptBounds(required, allowed, least)
